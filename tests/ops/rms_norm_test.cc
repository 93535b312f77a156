#include "ops/rms_norm/rms_norm.h"

#include <cmath>
#include <limits>

#include "ops/kernels.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "tensor/quant_tensor.h"

DSV4_DECLARE_KERNELS(RmsNormCpu, RmsNormArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<RmsNormArgs>> kRmsNormKernels = DSV4_KERNELS(RmsNormCpu);

void RmsNormOnGpu(const ExecContext&, const RmsNormArgs& a) {
  Mirror gpu;
  const Tensor y = gpu.Out(a.y);
  RmsNorm(gpu.ctx(), {.x = gpu.In(a.x, a.y, y), .weight = gpu.In(a.weight), .y = y, .eps = a.eps});
  gpu.Finish();
}

// Every term of the sum of squares is positive, so its relative error is at most gamma_n with n roundings per term (D /
// 64 additions in a lane, 7 of a tail, 6 of lanes and accumulators, the square). The root halves the error. Division,
// eps, root, reciprocal and two products round six times; the reference three. A GPU adds D / 256 terms in a thread, 5
// of lanes, 8 of warps, the square; the error of its rsqrtf is 2 ulp.
double RelativeError(On on, int64_t d) {
  return on == On::kGpu ? Gamma(CeilDiv(d, 256) + 14) / 2 + Gamma(12) : Gamma(CeilDiv(d, 64) + 14) / 2 + Gamma(9);
}

DSV4_DEVICE_TEST(RmsNorm, MatchesReference) {
  Random random(1);
  for (const int64_t d : {1, 2, 7, 8, 31, 64, 96, 129, 512, 4096, 7168}) {
    for (const int64_t rows : {1, 2, 67}) {
      for (const bool weighted : {false, true}) {
        GuardBuffer<float> x({rows, d}, random.Normals(rows * d)), weight({d}, random.Normals(d)), want({rows, d});
        RmsNormArgs args{
            .x = x.tensor(), .weight = weighted ? weight.tensor() : Tensor{}, .y = want.tensor(), .eps = 1e-6f};
        RmsNorm(Reference(), args);
        ForEachKernel(on, kRmsNormKernels, RmsNormOnGpu, [&](const auto run) {
          GuardBuffer<float> y({rows, d});
          args.y = y.tensor();
          run(TwoThreads(), args);
          EXPECT_TRUE(Near(y.span(), want.span(), 0, RelativeError(on, d))) << d;
        });
      }
    }
  }
}

DSV4_DEVICE_TEST(RmsNorm, RowsDoNotDependOnTheirBatchAndMayBeInPlace) {
  Random random(2);
  const int64_t rows = 67, d = 517;
  GuardBuffer<float> x({rows, d}, random.Normals(rows * d)), weight({d}, random.Normals(d));
  ForEachKernel(on, kRmsNormKernels, RmsNormOnGpu, [&](const auto run) {
    GuardBuffer<float> all({rows, d});
    run({}, {.x = x.tensor(), .weight = weight.tensor(), .y = all.tensor(), .eps = 1e-6f});
    for (const ExecContext& ctx : ThreadCounts()) {
      GuardBuffer<float> y({rows, d}, x.values());
      run(ctx, {.x = y.tensor(), .weight = weight.tensor(), .y = y.tensor(), .eps = 1e-6f});
      EXPECT_TRUE(BitEqual(y.span(), all.span()));
    }
    for (const int64_t r : {0, 1, 66}) {
      GuardBuffer<float> y({1, d});
      run({}, {.x = {x.row(r).data(), DType::kF32, {1, d}}, .weight = weight.tensor(), .y = y.tensor(), .eps = 1e-6f});
      EXPECT_TRUE(BitEqual(y.span(), all.row(r)));
    }
  });
}

DSV4_DEVICE_TEST(RmsNorm, ZerosAndNan) {
  const int64_t d = 40;
  GuardBuffer<float> x({2, d}, std::vector<float>(80, 0.0f));
  x[d + 39] = std::numeric_limits<float>::quiet_NaN();
  ForEachKernel(on, kRmsNormKernels, RmsNormOnGpu, [&](const auto run) {
    GuardBuffer<float> y({2, d});
    run({}, {.x = x.tensor(), .y = y.tensor(), .eps = 1e-6f});
    for (int64_t i = 0; i < d; ++i) {
      EXPECT_EQ(y[i], 0.0f);
      EXPECT_TRUE(std::isnan(y[d + i]));
    }
  });
}

}  // namespace
}  // namespace dsv4::test
