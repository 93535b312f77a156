#include "ops/hc_head/hc_head.h"

#include <cmath>

#include "ops/kernels.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/hc_fixture.h"
#include "support/quant_fixture.h"

DSV4_DECLARE_KERNELS(HcHeadCpu, HcHeadArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<HcHeadArgs>> kHcHeadKernels = DSV4_KERNELS(HcHeadCpu);

void HcHeadOnGpu(const ExecContext& ctx, const HcHeadArgs& a) {
  Mirror gpu(ctx);
  HcHeadArgs b = a;
  b.streams = gpu.In(a.streams), b.fn = gpu.Weight(a.fn, /*rows=*/true);
  b.base = gpu.In(a.base), b.scale = gpu.In(a.scale);
  b.out = gpu.Out(a.out);
  HcHead(gpu.ctx(), b);
  gpu.Finish();
}

// On a CPU the products are off by K gamma_(K/8 + 40) (hc_fixture.h), times the scale 0.05 in the logit, times the
// sigmoid's slope 1/4, plus roundings; then h products with |stream| <= 6. On a GPU, and for large K, the tolerance of
// a mix.
double HcHeadTolerance(On on, const HcCase& c) {
  const int64_t h = c.h, k = c.h * c.d;
  if (on == On::kGpu || k > 1024) return 6 * static_cast<double>(h) * HcMixTolerance(on, c);
  const double pre = 0.25 * 0.05 * static_cast<double>(k) * Gamma(HcRoundings(on, k)) + Gamma(30);
  return 6 * static_cast<double>(h) * (pre + Gamma(h + 2));
}

DSV4_DEVICE_TEST(HcHead, MatchesReferenceAndDoesNotDependOnTheBatch) {
  Random random(1);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const HcCase& c : kHcCases) {
      SCOPED_TRACE(c.name());
      HcSite site(random, format, c, c.h, 1);
      GuardBuffer<float> want({c.t, c.d});
      HcHeadArgs args{.streams = site.streams.tensor(),
                      .fn = site.fn.tensor(),
                      .base = site.base.tensor(),
                      .scale = site.scale.tensor(),
                      .eps = 1e-6f,
                      .norm_eps = 1e-6f,
                      .out = want.tensor()};
      HcHead(Reference(), args);
      ForEachKernel(on, kHcHeadKernels, HcHeadOnGpu, [&](const auto run) {
        GuardBuffer<float> all({c.t, c.d});
        args.streams = site.streams.tensor();
        args.out = all.tensor();
        run(TwoThreads(), args);
        EXPECT_TRUE(Near(all.span(), want.span(), HcHeadTolerance(on, c)));
        for (const ExecContext& ctx : ThreadCounts()) {
          GuardBuffer<float> again({c.t, c.d}), one({1, c.d});
          args.streams = site.streams.tensor();
          args.out = again.tensor();
          run(ctx, args);
          EXPECT_TRUE(BitEqual(again.span(), all.span()));
          args.streams = {site.streams.row(c.t - 1).data(), DType::kF32, {1, c.h, c.d}};
          args.out = one.tensor();
          run(ctx, args);
          EXPECT_TRUE(BitEqual(one.span(), all.row(c.t - 1)));
          if (on == On::kGpu) break;  // a GPU has no thread count
        }
      });
    }
  }
}

}  // namespace
}  // namespace dsv4::test
