// HcPre, HcPost, HcHead and HcBridge on the GPU.
#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_head/hc_head.h"
#include "ops/hc_post/hc_post.h"
#include "ops/hc_pre/hc_pre.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void HcPreCuda(const ExecContext& ctx, const HcPreArgs& args);
void HcPostCuda(const ExecContext& ctx, const HcPostArgs& args);
void HcHeadCuda(const ExecContext& ctx, const HcHeadArgs& args);
void HcBridgeCuda(const ExecContext& ctx, const HcBridgeArgs& args);
}  // namespace dsv4

namespace dsv4::test {
namespace {

struct Case {
  int64_t t, h, d;
};

struct Site {
  Site(Random& random, WeightFormat format, const Case& c, int64_t rows, int64_t num_scales)
      : streams({c.t, c.h, c.d}, random.Normals(c.t * c.h * c.d)),
        fn(random, {format}, rows, c.h * c.d),
        base({rows}, random.Normals(rows)),
        scale({num_scales},
              num_scales == 1 ? std::vector<float>{0.05f} : std::vector<float>{0.05f, 0.03f, 0.08f}) {}
  GuardBuffer<float> streams;
  QuantFixture fn;
  GuardBuffer<float> base, scale;
};

struct Outputs {
  explicit Outputs(const Case& c) : x({c.t, c.d}), post({c.t, c.h}), comb({c.t, c.h, c.h}) {}
  GuardBuffer<float> x, post, comb;
};

HcPreArgs Args(Site& s, Outputs& out) {
  return {.streams = s.streams.tensor(),
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

constexpr Regime kRegimes[] = {Regime::kDecode, Regime::kPrompt};

void RunPre(Site& s, const Case& c, Outputs& out, Regime regime) {
  Mirror gpu;
  gpu.ctx().regime = regime;
  HcPreArgs a = Args(s, out);
  a.streams = gpu.In(Tensor{s.streams.data(), DType::kF32, {c.t, c.h, c.d}});
  a.fn = gpu.Weight(s.fn.tensor(), /*rows=*/true);
  a.base = gpu.In(a.base), a.scale = gpu.In(a.scale);
  a.x = gpu.Out(a.x), a.post = gpu.Out(a.post), a.comb = gpu.Out(a.comb);
  HcPreCuda(gpu.ctx(), a);
  gpu.Finish();
}

// As derived for the CPU in tests/ops/hc_pre_test.cc: |dm| <= gamma_n K, here n = 4 (a lane) + 5 (lanes) + K/2048 + 5
// (column blocks), then rho. expf, rsqrtf and the sigmoid's division add less than 30 roundings; Sinkhorn is
// non-expansive in log space, with 6 roundings for each of 39 normalisations.
double MixTolerance(int64_t k) {
  const double logit = 0.08 * static_cast<double>(k) * Gamma(CeilDiv(k, 2048) + 44) + Gamma(30);
  return 4 * logit + Gamma(6 * 39);
}

const std::vector<Case> kCases = {{1, 4, 256},   {1, 1, 5},      {3, 4, 33},     {17, 2, 24},  {40, 4, 64},
                                  {2, 8, 16},    {67, 3, 7},     {1, 4, 4096},   {2, 4, 7168}, {9, 4, 4096},
                                  {3, 4, 2048},  {2, 4, 8196},   {5, 5, 100},    {1, 6, 1000}, {1, 7, 64},
                                  {131, 4, 128}, {300, 4, 1024}, {150, 4, 4096}, {90, 4, 7168}};

TEST(CudaHcPre, MatchesReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(StrCat("T ", c.t, " H ", c.h, " D ", c.d));
      Site site(random, format, c, (2 + c.h) * c.h, 3);
      Outputs want(c);
      HcPre({.reference_ops = true}, Args(site, want));
      for (const Regime regime : kRegimes) {
        Outputs got(c);
        RunPre(site, c, got, regime);
        // Beyond small K the worst case bound says nothing; errors grow like its root.
        const double tolerance = c.h * c.d <= 1024 ? MixTolerance(c.h * c.d) : 1e-4;
        EXPECT_TRUE(Near(got.comb.span(), want.comb.span(), 0, tolerance));
        EXPECT_TRUE(Near(got.post.span(), want.post.span(), tolerance));
        EXPECT_TRUE(Near(got.x.span(), want.x.span(), 6 * static_cast<double>(c.h) * tolerance));
      }
    }
  }
}

TEST(CudaHcPre, TokensDoNotDependOnTheirBatchNorOnTheRun) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const Case c{300, 4, 4096};
  Site site(random, WeightFormat::kF32, c, 24, 3);
  for (const Regime regime : kRegimes) {
    SCOPED_TRACE(static_cast<int>(regime));
    Outputs all(c), again(c);
    RunPre(site, c, all, regime);
    RunPre(site, c, again, regime);
    EXPECT_TRUE(BitEqual(again.x.span(), all.x.span()));
    EXPECT_TRUE(BitEqual(again.comb.span(), all.comb.span()));
    EXPECT_TRUE(BitEqual(again.post.span(), all.post.span()));
    for (const int64_t t : {1, 2, 3, 7, 8, 9, 17, 33, 64, 65, 200}) {
      const Case few{t, c.h, c.d};
      Outputs got(few);
      RunPre(site, few, got, regime);
      for (int64_t i = 0; i < t; ++i) {
        ASSERT_TRUE(BitEqual(got.x.row(i), all.x.row(i))) << t << " " << i;
        ASSERT_TRUE(BitEqual(got.comb.row(i), all.comb.row(i)));
        ASSERT_TRUE(BitEqual(got.post.row(i), all.post.row(i)));
      }
    }
  }
}

// A token whose values are damaged does not touch the others.
TEST(CudaHcPre, NaNStaysInItsToken) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  const Case c{10, 4, 256};
  Site site(random, WeightFormat::kF32, c, 24, 3);
  for (const Regime regime : kRegimes) {
    Outputs want(c), got(c);
    site.streams[3 * c.h * c.d + 5] = 1;
    RunPre(site, c, want, regime);
    site.streams[3 * c.h * c.d + 5] = std::nanf("");
    RunPre(site, c, got, regime);
    for (int64_t t = 0; t < c.t; ++t) {
      if (t == 3) {
        for (const float v : got.x.row(t)) EXPECT_TRUE(std::isnan(v));
        for (const float v : got.comb.row(t)) EXPECT_TRUE(std::isnan(v));
      } else {
        EXPECT_TRUE(BitEqual(got.x.row(t), want.x.row(t)));
      }
    }
  }
}

// Lessons 7 to 9: rows are pre, post, comb; comb is doubly stochastic, its columns (over the source) to rounding.
TEST(CudaHcPre, CombIsDoublyStochastic) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  const Case c{33, 4, 32};
  Site site(random, WeightFormat::kF32, c, 24, 3);
  for (const Regime regime : kRegimes) {
    Outputs got(c);
    RunPre(site, c, got, regime);
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
  }
}

// Sums of H + 1 products, fused or not: each side is off by gamma_{H+1} of the sum of magnitudes, here <= 6 (H + 1) 6.
TEST(CudaHcPost, MatchesReference) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const Case& c : kCases) {
    SCOPED_TRACE(StrCat("T ", c.t, " H ", c.h, " D ", c.d));
    GuardBuffer<float> y({c.t, c.d}, random.Normals(c.t * c.d)), post({c.t, c.h}, random.Normals(c.t * c.h)),
        comb({c.t, c.h, c.h}, random.Normals(c.t * c.h * c.h)),
        want({c.t, c.h, c.d}, random.Normals(c.t * c.h * c.d)), got({c.t, c.h, c.d}, want.values());
    HcPost({.reference_ops = true},
           {.y = y.tensor(), .post = post.tensor(), .comb = comb.tensor(), .streams = want.tensor()});
    Mirror gpu;
    HcPostCuda(gpu.ctx(), {.y = gpu.In(y.tensor()),
                           .post = gpu.In(post.tensor()),
                           .comb = gpu.In(comb.tensor()),
                           .streams = gpu.Out(got.tensor())});
    gpu.Finish();
    EXPECT_TRUE(Near(got.span(), want.span(), 2 * Gamma(c.h + 1) * 36 * static_cast<double>(c.h + 1)));
  }
}

TEST(CudaHcHead, MatchesReference) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(StrCat("R ", c.t, " H ", c.h, " D ", c.d));
      Site site(random, format, c, c.h, 1);
      GuardBuffer<float> want({c.t, c.d}), got({c.t, c.d});
      HcHeadArgs a{.streams = site.streams.tensor(),
                   .fn = site.fn.tensor(),
                   .base = site.base.tensor(),
                   .scale = site.scale.tensor(),
                   .eps = 1e-6f,
                   .norm_eps = 1e-6f,
                   .out = want.tensor()};
      HcHead({.reference_ops = true}, a);
      Mirror gpu;
      a.streams = gpu.In(a.streams), a.fn = gpu.Weight(a.fn, true), a.base = gpu.In(a.base),
      a.scale = gpu.In(a.scale);
      a.out = gpu.Out(got.tensor());
      HcHeadCuda(gpu.ctx(), a);
      gpu.Finish();
      const double tolerance = c.h * c.d <= 1024 ? MixTolerance(c.h * c.d) : 1e-4;
      EXPECT_TRUE(Near(got.span(), want.span(), 6 * static_cast<double>(c.h) * tolerance));
    }
  }
}

struct Bridge {
  Bridge(Random& random, WeightFormat format, const Case& c)
      : site(random, format, c, (2 + c.h) * c.h, 3),
        y({c.t, c.d}, random.Normals(c.t * c.d)),
        norm({c.d}, random.Normals(c.d)),
        post({c.t, c.h}, random.Uniforms(c.t * c.h, 0, 2)),
        comb({c.t, c.h, c.h}, random.Uniforms(c.t * c.h * c.h, 0, 0.5)) {}
  // `t` first tokens. Streams, post and comb come back in `streams` and `out`.
  HcBridgeArgs Args(const Case& c, bool first, GuardBuffer<float>& streams, Outputs& out) {
    std::copy_n(site.streams.data(), c.t * c.h * c.d, streams.data());
    std::copy_n(post.data(), c.t * c.h, out.post.data());
    std::copy_n(comb.data(), c.t * c.h * c.h, out.comb.data());
    return {.streams = streams.tensor(),
            .y = first ? Tensor{} : Tensor{y.data(), DType::kF32, {c.t, c.d}},
            .fn = site.fn.tensor(),
            .base = site.base.tensor(),
            .scale = site.scale.tensor(),
            .iters = 20,
            .eps = 1e-6f,
            .norm_eps = 1e-6f,
            .norm = norm.tensor(),
            .x = out.x.tensor(),
            .post = out.post.tensor(),
            .comb = out.comb.tensor()};
  }
  void Run(const Case& c, bool first, GuardBuffer<float>& streams, Outputs& out, Regime regime, const Tensor& slots = {}) {
    HcBridgeArgs a = Args(c, first, streams, out);
    if (slots) a.y = slots;
    Mirror gpu;
    gpu.ctx().regime = regime;
    a.streams = gpu.Out(a.streams), a.y = gpu.In(a.y), a.fn = gpu.Weight(a.fn, /*rows=*/true),
    a.base = gpu.In(a.base);
    a.scale = gpu.In(a.scale), a.norm = gpu.In(a.norm);
    a.x = gpu.Out(a.x), a.post = gpu.Out(a.post), a.comb = gpu.Out(a.comb);
    EXPECT_TRUE(!slots || HcBridgeAddsSlots(gpu.ctx(), c.t, c.h, c.d, slots.dim(1)));
    HcBridgeCuda(gpu.ctx(), a);
    gpu.Finish();
  }
  Site site;
  GuardBuffer<float> y, norm, post, comb;
};

// Tolerances of HcPost and HcPre. The norm divides x by its root mean square, which is above 0.05 in these data.
void ExpectTheComposition(Random& random, WeightFormat format, const Case& c, bool first) {
  SCOPED_TRACE(StrCat("T ", c.t, " H ", c.h, " D ", c.d, first ? " first" : ""));
  Bridge bridge(random, format, c);
  GuardBuffer<float> want_streams({c.t, c.h, c.d}), streams({c.t, c.h, c.d});
  Outputs want(c), got(c);
  HcBridge({.reference_ops = true}, bridge.Args(c, first, want_streams, want));
  for (const Regime regime : kRegimes) {
    bridge.Run(c, first, streams, got, regime);
    const double tolerance = c.h * c.d <= 1024 ? MixTolerance(c.h * c.d) : 1e-4;
    EXPECT_TRUE(Near(streams.span(), want_streams.span(),
                     first ? 0 : 2 * Gamma(c.h + 1) * 36 * static_cast<double>(c.h + 1)));
    EXPECT_TRUE(Near(got.comb.span(), want.comb.span(), 0, tolerance));
    EXPECT_TRUE(Near(got.post.span(), want.post.span(), tolerance));
    EXPECT_TRUE(Near(got.x.span(), want.x.span(), 6 * 20 * static_cast<double>(c.h) * tolerance));
  }
}

TEST(CudaHcBridge, EqualsTheComposition) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const Case& c : kCases) {
      for (const bool first : {false, true}) ExpectTheComposition(random, format, c, first);
    }
  }
}

// Little work, so that compute-sanitizer ends soon: a cluster of blocks a token, eight tokens and many.
TEST(CudaHcBridge, EqualsTheCompositionShort) {
  DSV4_GPU_OR_SKIP();
  Random random(9);
  ExpectTheComposition(random, WeightFormat::kF32, {1, 4, 4096}, false);
  ExpectTheComposition(random, WeightFormat::kBf16, {9, 4, 1024}, false);
  ExpectTheComposition(random, WeightFormat::kF32, {131, 4, 64}, true);
}

TEST(CudaHcBridge, TokensDoNotDependOnTheirBatchNorOnTheRun) {
  DSV4_GPU_OR_SKIP();
  Random random(8);
  for (const int64_t d : {4096, 7168, 512}) {
    const Case c{1100, 4, d};
    Bridge bridge(random, d == 4096 ? WeightFormat::kF32 : WeightFormat::kBf16, c);
    for (const Regime regime : kRegimes) {
      SCOPED_TRACE(StrCat("D ", d, " regime ", static_cast<int>(regime)));
      GuardBuffer<float> streams({c.t, c.h, c.d});
      Outputs all(c);
      bridge.Run(c, false, streams, all, regime);
      for (const int64_t t : {1, 2, 3, 8, 9, 17, 33, 64, 65, 200}) {
        const Case few{t, c.h, c.d};
        GuardBuffer<float> few_streams({t, c.h, c.d});
        Outputs got(few);
        bridge.Run(few, false, few_streams, got, regime);
        for (int64_t i = 0; i < t; ++i) {
          ASSERT_TRUE(BitEqual(few_streams.row(i), streams.row(i))) << t << " " << i;
          ASSERT_TRUE(BitEqual(got.x.row(i), all.x.row(i))) << t << " " << i;
          ASSERT_TRUE(BitEqual(got.comb.row(i), all.comb.row(i)));
          ASSERT_TRUE(BitEqual(got.post.row(i), all.post.row(i)));
        }
      }
    }
  }
}

// A token's slots, yet to be added: the bits of their sum added beforehand.
TEST(CudaHcBridge, AddsSlots) {
  DSV4_GPU_OR_SKIP();
  Random random(9);
  constexpr int64_t d = 4096;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    for (const int64_t t : {1, 3}) {
      const Case c{t, 4, d};
      Bridge bridge(random, format, c);
      for (const int64_t slots : {2, 7, 8}) {
        GuardBuffer<float> parts({t, slots, d}, random.Normals(t * slots * d));
        parts[1] = -0.0f, parts[d + 1] = -0.0f;
        for (int64_t i = 0; i < t * d; ++i) {
          float sum = 0;
          for (int64_t a = 0; a < slots; ++a) sum += parts[(i / d * slots + a) * d + i % d];
          bridge.y[i] = sum;
        }
        GuardBuffer<float> want_streams({t, 4, d}), streams({t, 4, d});
        Outputs want(c), got(c);
        bridge.Run(c, false, want_streams, want, Regime::kDecode);
        bridge.Run(c, false, streams, got, Regime::kDecode, parts.tensor());
        EXPECT_TRUE(BitEqual(streams.span(), want_streams.span()));
        EXPECT_TRUE(BitEqual(got.x.span(), want.x.span()));
        EXPECT_TRUE(BitEqual(got.post.span(), want.post.span()) && BitEqual(got.comb.span(), want.comb.span()));
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
