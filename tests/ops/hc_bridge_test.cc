#include "ops/hc_bridge/hc_bridge.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "ops/hc_post/hc_post.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/rms_norm/rms_norm.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/hc_fixture.h"
#include "support/quant_fixture.h"

namespace dsv4::test {
namespace {

void HcBridgeOnGpu(const ExecContext& ctx, const HcBridgeArgs& a) {
  Mirror gpu(ctx);
  HcBridgeArgs b = a;
  b.streams = gpu.Out(a.streams), b.y = gpu.In(a.y), b.fn = gpu.Weight(a.fn, /*rows=*/true);
  b.base = gpu.In(a.base), b.scale = gpu.In(a.scale), b.norm = gpu.In(a.norm);
  b.x = gpu.Out(a.x), b.post = gpu.Out(a.post), b.comb = gpu.Out(a.comb);
  if (a.y && a.y.shape.rank() == 3) {
    EXPECT_TRUE(HcBridgeAddsSlots(gpu.ctx(), a.streams.dim(0), a.streams.dim(1), a.streams.dim(2), a.y.dim(1)));
  }
  HcBridge(gpu.ctx(), b);
  gpu.Finish();
}

// The inputs of a bridge of c.t tokens.
struct Bridge {
  Bridge(Random& random, WeightFormat format, const HcCase& c)
      : site(random, format, c, (2 + c.h) * c.h, 3),
        y({c.t, c.d}, random.Normals(c.t * c.d)),
        norm({c.d}, random.Normals(c.d)),
        post({c.t, c.h}, random.Uniforms(c.t * c.h, 0, 2)),
        comb({c.t, c.h, c.h}, random.Uniforms(c.t * c.h * c.h, 0, 0.5)) {}
  HcSite site;
  GuardBuffer<float> y, norm, post, comb;
};

// The results of a bridge for the first tokens.
struct Bridged {
  explicit Bridged(const HcCase& c) : streams({c.t, c.h, c.d}), out(c) {}
  // Holds the first tokens of `from` before the op.
  HcBridgeArgs Args(Bridge& from, bool first) {
    const int64_t t = streams.tensor().dim(0), d = streams.tensor().dim(2);
    std::copy_n(from.site.streams.data(), streams.size(), streams.data());
    std::copy_n(from.post.data(), out.post.size(), out.post.data());
    std::copy_n(from.comb.data(), out.comb.size(), out.comb.data());
    return {.streams = streams.tensor(),
            .y = first ? Tensor{} : Tensor{from.y.data(), DType::kF32, {t, d}},
            .fn = from.site.fn.tensor(),
            .base = from.site.base.tensor(),
            .scale = from.site.scale.tensor(),
            .iters = 20,
            .eps = 1e-6f,
            .norm_eps = 1e-6f,
            .norm = from.norm.tensor(),
            .x = out.x.tensor(),
            .post = out.post.tensor(),
            .comb = out.comb.tensor()};
  }
  GuardBuffer<float> streams;
  HcOutputs out;
};

void ExpectSameBits(Bridged& got, Bridged& want) {
  for (int64_t i = 0; i < got.streams.tensor().dim(0); ++i) {
    ASSERT_TRUE(BitEqual(got.streams.row(i), want.streams.row(i))) << i;
    ASSERT_TRUE(BitEqual(got.out.x.row(i), want.out.x.row(i))) << i;
    ASSERT_TRUE(BitEqual(got.out.post.row(i), want.out.post.row(i))) << i;
    ASSERT_TRUE(BitEqual(got.out.comb.row(i), want.out.comb.row(i))) << i;
  }
}

// The ops one after the other, in `ctx`.
void Compose(const ExecContext& ctx, const HcBridgeArgs& a) {
  if (a.y) HcPost(ctx, {.y = a.y, .post = a.post, .comb = a.comb, .streams = a.streams});
  HcPre(ctx, {.streams = a.streams,
              .fn = a.fn,
              .base = a.base,
              .scale = a.scale,
              .iters = a.iters,
              .eps = a.eps,
              .norm_eps = a.norm_eps,
              .x = a.x,
              .post = a.post,
              .comb = a.comb});
  RmsNorm(ctx, {.x = a.x, .weight = a.norm, .y = a.x, .eps = a.norm_eps});
}

// On a CPU the op equals its composition bit for bit. On a GPU it has the tolerances of hc_post and hc_pre; the norm
// divides x by its root mean square, which is above 0.05 in these data.
void ExpectTheComposition(On on, Random& random, WeightFormat format, const HcCase& c, bool first) {
  SCOPED_TRACE(StrCat(c.name(), first ? " first" : ""));
  Bridge bridge(random, format, c);
  for (const auto& at : Places(on, HcBridge, HcBridgeOnGpu)) {
    SCOPED_TRACE(at.name);
    Bridged want(c);
    Compose(on == On::kGpu ? ExecContext{.reference_ops = true} : at.ctx, want.Args(bridge, first));
    for (const Regime regime : RegimesOf(on)) {
      ExecContext ctx = at.ctx;
      ctx.regime = regime;
      Bridged got(c);
      at.op(ctx, got.Args(bridge, first));
      if (on == On::kCpu) {
        ExpectSameBits(got, want);
        continue;
      }
      const double tolerance = HcMixTolerance(on, c), terms = static_cast<double>(c.h + 1);
      EXPECT_TRUE(Near(got.streams.span(), want.streams.span(), first ? 0 : 2 * Gamma(c.h + 1) * 36 * terms));
      EXPECT_TRUE(Near(got.out.comb.span(), want.out.comb.span(), 0, tolerance));
      EXPECT_TRUE(Near(got.out.post.span(), want.out.post.span(), tolerance));
      EXPECT_TRUE(Near(got.out.x.span(), want.out.x.span(), 6 * 20 * static_cast<double>(c.h) * tolerance));
    }
  }
}

DSV4_DEVICE_TEST(HcBridge, EqualsTheComposition) {
  Random random(7);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const HcCase& c : kHcCases) {
      if (on == On::kCpu && c.t * c.h * c.d > 300'000) continue;  // takes seconds; smaller cases show the same
      for (const bool first : {false, true}) ExpectTheComposition(on, random, format, c, first);
    }
  }
}

// Little work, so that compute-sanitizer is fast: a cluster of blocks per token, eight tokens and many.
DSV4_DEVICE_TEST(HcBridge, EqualsTheCompositionShort) {
  Random random(9);
  ExpectTheComposition(on, random, WeightFormat::kF32, {1, 4, 4096}, false);
  ExpectTheComposition(on, random, WeightFormat::kBf16, {9, 4, 1024}, false);
  ExpectTheComposition(on, random, WeightFormat::kF32, {131, 4, 64}, true);
}

DSV4_DEVICE_TEST(HcBridge, TokensDoNotDependOnTheirBatchNorOnTheRun) {
  Random random(8);
  for (const int64_t d : {4096, 7168, 512}) {
    const HcCase c{on == On::kGpu ? 1100 : 20, 4, d};
    Bridge bridge(random, d == 4096 ? WeightFormat::kF32 : WeightFormat::kBf16, c);
    for (const auto& at : Places(on, HcBridge, HcBridgeOnGpu)) {
      for (const Regime regime : RegimesOf(on)) {
        SCOPED_TRACE(StrCat(at.name, " D ", d, " regime ", static_cast<int>(regime)));
        ExecContext ctx = at.ctx;
        ctx.regime = regime;
        Bridged all(c);
        at.op(ctx, all.Args(bridge, false));
        for (const int64_t t : {1, 2, 3, 8, 9, 17, 33, 64, 65, 200}) {
          if (t > c.t) continue;
          Bridged few({t, c.h, c.d});
          at.op(ctx, few.Args(bridge, false));
          ExpectSameBits(few, all);
        }
      }
    }
  }
}

// A token's choices that the op adds: the same bits as if they were added before. Only the GPU kernel supports this.
TEST(CudaHcBridge, AddsSlots) {
  DSV4_GPU_OR_SKIP();
  Random random(9);
  constexpr int64_t d = 4096;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const int64_t t : {1, 3}) {
      const HcCase c{t, 4, d};
      Bridge bridge(random, format, c);
      for (const int64_t slots : {2, 7, 8}) {
        GuardBuffer<float> parts({t, slots, d}, random.Normals(t * slots * d));
        parts[1] = -0.0f, parts[d + 1] = -0.0f;
        for (int64_t i = 0; i < t * d; ++i) {
          float sum = 0;
          for (int64_t a = 0; a < slots; ++a) sum += parts[(i / d * slots + a) * d + i % d];
          bridge.y[i] = sum;
        }
        Bridged want(c), got(c);
        HcBridgeOnGpu({.regime = Regime::kDecode}, want.Args(bridge, false));
        HcBridgeArgs args = got.Args(bridge, false);
        args.y = parts.tensor();
        HcBridgeOnGpu({.regime = Regime::kDecode}, args);
        ExpectSameBits(got, want);
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
