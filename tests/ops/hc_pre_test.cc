#include "ops/hc_pre/hc_pre.h"

#include <cmath>

#include "ops/kernels.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/hc_fixture.h"
#include "support/quant_fixture.h"

DSV4_DECLARE_KERNELS(HcPreCpu, HcPreArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<HcPreArgs>> kHcPreKernels = DSV4_KERNELS(HcPreCpu);

void HcPreOnGpu(const ExecContext& ctx, const HcPreArgs& a) {
  Mirror gpu(ctx);
  HcPreArgs b = a;
  b.streams = gpu.In(a.streams), b.fn = gpu.Weight(a.fn, /*rows=*/true);
  b.base = gpu.In(a.base), b.scale = gpu.In(a.scale);
  b.x = gpu.Out(a.x), b.post = gpu.Out(a.post), b.comb = gpu.Out(a.comb);
  HcPre(gpu.ctx(), b);
  gpu.Finish();
}

// The arguments for the tokens from `first`, up to the size of `out`.
HcPreArgs SiteArgs(HcSite& s, HcOutputs& out, int64_t first = 0) {
  const int64_t t = out.x.tensor().dim(0), h = s.streams.tensor().dim(1), d = s.streams.tensor().dim(2);
  return {.streams = {s.streams.data() + first * h * d, DType::kF32, {t, h, d}},
          .fn = s.fn.tensor(),
          .base = s.base.tensor(),
          .scale = s.scale.tensor(),
          .iters = 20,
          .eps = 1e-6f,
          .norm_eps = 1e-6f,
          .x = out.x.tensor(),
          .post = out.post.tensor(),
          .comb = out.comb.tensor()};
}

// Calls fn(run, ctx) for every kernel of the device, in every regime.
template <typename Fn>
void ForEachHcPre(On on, const Fn& fn) {
  for (const Regime regime : RegimesOf(on)) {
    SCOPED_TRACE(static_cast<int>(regime));
    ExecContext ctx = TwoThreads();
    ctx.regime = regime;
    ForEachKernel(on, kHcPreKernels, HcPreOnGpu, [&](const auto run) { fn(run, ctx); });
  }
}

// x is a sum of h products with |stream| <= 6 and pre <= 1.
DSV4_DEVICE_TEST(HcPre, MatchesReference) {
  Random random(1);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const HcCase& c : kHcCases) {
      SCOPED_TRACE(c.name());
      HcSite site(random, format, c, (2 + c.h) * c.h, 3);
      HcOutputs want(c);
      HcPre(Reference(), SiteArgs(site, want));
      const double tolerance = HcMixTolerance(on, c);
      ForEachHcPre(on, [&](const auto run, const ExecContext& ctx) {
        HcOutputs got(c);
        run(ctx, SiteArgs(site, got));
        EXPECT_TRUE(Near(got.comb.span(), want.comb.span(), 0, tolerance));
        EXPECT_TRUE(Near(got.post.span(), want.post.span(), tolerance));
        EXPECT_TRUE(Near(got.x.span(), want.x.span(), 6 * static_cast<double>(c.h) * tolerance));
      });
    }
  }
}

void ExpectTheRows(HcOutputs& got, HcOutputs& all, int64_t first) {
  for (int64_t i = 0; i < got.x.tensor().dim(0); ++i) {
    ASSERT_TRUE(BitEqual(got.x.row(i), all.x.row(first + i))) << first << " + " << i;
    ASSERT_TRUE(BitEqual(got.post.row(i), all.post.row(first + i))) << first << " + " << i;
    ASSERT_TRUE(BitEqual(got.comb.row(i), all.comb.row(first + i))) << first << " + " << i;
  }
}

DSV4_DEVICE_TEST(HcPre, TokensDoNotDependOnTheirBatchNorOnTheRun) {
  Random random(2);
  const HcCase c = on == On::kGpu ? HcCase{300, 4, 4096} : HcCase{67, 4, 40};
  HcSite site(random, WeightFormat::kF32, c, 24, 3);
  ForEachHcPre(on, [&](const auto run, ExecContext ctx) {
    HcOutputs all(c);
    run(ctx, SiteArgs(site, all));
    for (const ExecContext& threads : ThreadCounts()) {
      ctx.pool = threads.pool;
      HcOutputs again(c);
      run(ctx, SiteArgs(site, again));
      ExpectTheRows(again, all, 0);
      for (const int64_t t : {1, 2, 3, 7, 8, 9, 17, 33, 64, 65, 200}) {
        if (t > c.t) continue;
        HcOutputs few({t, c.h, c.d});
        run(ctx, SiteArgs(site, few));
        ExpectTheRows(few, all, 0);
      }
      for (const int64_t i : {1, 40, 66}) {
        HcOutputs one({1, c.h, c.d});
        run(ctx, SiteArgs(site, one, i));
        ExpectTheRows(one, all, i);
      }
      if (on == On::kGpu) break;  // a GPU has no thread count
    }
  });
}

// A token with damaged values does not affect the others.
DSV4_DEVICE_TEST(HcPre, NaNStaysInItsToken) {
  Random random(3);
  const HcCase c{10, 4, 256};
  HcSite site(random, WeightFormat::kF32, c, 24, 3);
  ForEachHcPre(on, [&](const auto run, const ExecContext& ctx) {
    HcOutputs want(c), got(c);
    site.streams[3 * c.h * c.d + 5] = 1;
    run(ctx, SiteArgs(site, want));
    site.streams[3 * c.h * c.d + 5] = std::nanf("");
    run(ctx, SiteArgs(site, got));
    for (int64_t t = 0; t < c.t; ++t) {
      if (t == 3) {
        for (const float v : got.x.row(t)) EXPECT_TRUE(std::isnan(v));
        for (const float v : got.comb.row(t)) EXPECT_TRUE(std::isnan(v));
      } else {
        EXPECT_TRUE(BitEqual(got.x.row(t), want.x.row(t)));
      }
    }
  });
}

// Columns (over the source) end with a normalisation; rows are close to 1 after 20 iterations.
DSV4_DEVICE_TEST(HcPre, CombIsDoublyStochastic) {
  Random random(4);
  const HcCase c{33, 4, 32};
  HcSite site(random, WeightFormat::kF32, c, 24, 3);
  ForEachHcPre(on, [&](const auto run, const ExecContext& ctx) {
    HcOutputs got(c);
    run(ctx, SiteArgs(site, got));
    for (int64_t i = 0; i < c.t; ++i) {
      for (int64_t a = 0; a < c.h; ++a) {
        double row = 0, column = 0;
        for (int64_t b = 0; b < c.h; ++b) {
          row += got.comb[(i * c.h + a) * c.h + b];
          column += got.comb[(i * c.h + b) * c.h + a];
        }
        EXPECT_NEAR(column, 1, 1e-5);
        EXPECT_NEAR(row, 1, 1e-3);
      }
    }
  });
}

}  // namespace
}  // namespace dsv4::test
