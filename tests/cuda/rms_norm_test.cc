#include "ops/rms_norm/rms_norm.h"

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void RmsNormCuda(const ExecContext& ctx, const RmsNormArgs& args);
}

namespace dsv4::test {
namespace {

// As on the CPU (tests/ops/rms_norm_test.cc): D/256 additions in a thread, 5 of lanes, 8 of warps, the square; rsqrtf is
// good to 2 ulp.
double RelativeError(int64_t d) { return Gamma(CeilDiv(d, 256) + 14) / 2 + Gamma(12); }

TEST(CudaRmsNorm, MatchesReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const int64_t d : {1, 2, 7, 31, 64, 129, 512, 4096, 7168}) {
    for (const int64_t rows : {1, 2, 67}) {
      for (const bool weighted : {false, true}) {
        GuardBuffer<float> x({rows, d}, random.Normals(rows * d)), weight({d}, random.Normals(d)), want({rows, d}), y({rows, d});
        const Tensor w = weighted ? weight.tensor() : Tensor{};
        RmsNorm({.reference_ops = true}, {.x = x.tensor(), .weight = w, .y = want.tensor(), .eps = 1e-6f});
        Mirror gpu;
        RmsNormCuda(gpu.ctx(), {.x = gpu.In(x.tensor()), .weight = gpu.In(w), .y = gpu.Out(y.tensor()), .eps = 1e-6f});
        gpu.Finish();
        EXPECT_TRUE(Near(y.span(), want.span(), 0, RelativeError(d))) << d;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
