#include "ops/hc_head/hc_head.h"

#include <cmath>

#include "ops/kernels.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

DSV4_DECLARE_KERNELS(HcHeadCpu, HcHeadArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<HcHeadArgs>> kHcHeadKernels = DSV4_KERNELS(HcHeadCpu);

// As in hc_pre_test.cc: the products are off by K gamma_(K/8 + 40), times the scale 0.05 in the logit, times the
// sigmoid's slope 1/4, plus roundings; then h products with |stream| <= 6.
double Tolerance(int64_t h, int64_t k) {
  const double pre = 0.25 * 0.05 * static_cast<double>(k) * Gamma(CeilDiv(k, 8) + 40) + Gamma(30);
  return 6 * static_cast<double>(h) * (pre + Gamma(h + 2));
}

TEST(HcHead, MatchesReferenceAndDoesNotDependOnTheBatch) {
  Random random(1);
  struct Case {
    int64_t r, h, d;
  };
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const Case c : {Case{1, 4, 256}, {1, 1, 3}, {5, 4, 41}, {33, 2, 16}, {67, 8, 9}}) {
      SCOPED_TRACE(StrCat("R ", c.r, " H ", c.h, " D ", c.d));
      GuardBuffer<float> streams({c.r, c.h, c.d}, random.Normals(c.r * c.h * c.d));
      const QuantFixture fn(random, {format}, c.h, c.h * c.d);
      GuardBuffer<float> base({c.h}, random.Normals(c.h)), scale({1}, {0.05f}), want({c.r, c.d});
      HcHeadArgs args{.streams = streams.tensor(),
                      .fn = fn.tensor(),
                      .base = base.tensor(),
                      .scale = scale.tensor(),
                      .eps = 1e-6f,
                      .norm_eps = 1e-6f,
                      .out = want.tensor()};
      HcHead(Reference(), args);
      ForEachKernel(kHcHeadKernels, [&](const auto run) {
        GuardBuffer<float> all({c.r, c.d});
        args.streams = streams.tensor();
        args.out = all.tensor();
        run(TwoThreads(), args);
        EXPECT_TRUE(Near(all.span(), want.span(), Tolerance(c.h, c.h * c.d)));
        for (const ExecContext& ctx : ThreadCounts()) {
          GuardBuffer<float> again({c.r, c.d}), one({1, c.d});
          args.streams = streams.tensor();
          args.out = again.tensor();
          run(ctx, args);
          EXPECT_TRUE(BitEqual(again.span(), all.span()));
          args.streams = {streams.row(c.r - 1).data(), DType::kF32, {1, c.h, c.d}};
          args.out = one.tensor();
          run(ctx, args);
          EXPECT_TRUE(BitEqual(one.span(), all.row(c.r - 1)));
        }
      });
    }
  }
}

}  // namespace
}  // namespace dsv4::test
