// Ops that write their output for the next matrix product as FP16 numbers in blocks (ops/activation_blocks.cuh): the
// same numbers that the product would compute from the float32 output, bit for bit.
#include <algorithm>
#include <cmath>

#include "ops/hc_bridge/hc_bridge.h"
#include "ops/linear/wgmma/wgmma_linear.h"
#include "ops/query_blocks.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/swiglu/swiglu.h"
#include "support/activation_blocks.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

const QuantCase kNvfp4{WeightFormat::kNvfp4}, kFp8{WeightFormat::kFp8Block, DType::kF32}, kBf16{WeightFormat::kBf16},
    kMxfp4{WeightFormat::kMxfp4};

GuardBuffer<uint8_t> Blocks(int64_t rows, int64_t cols) {
  return GuardBuffer<uint8_t>(
      static_cast<int64_t>(ActivationBlocksBytes(static_cast<size_t>(rows), static_cast<size_t>(cols))));
}

uint8_t* Bytes(const Tensor& t) { return static_cast<uint8_t*>(t.data); }

struct BlockSizes {
  int64_t tokens, groups, n, k;
};

TEST(CudaActivationBlocks, LinearReadsAndWritesThem) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const QuantCase& kind : {kNvfp4, kFp8}) {
    for (const BlockSizes& s :
         {BlockSizes{70, 1, 64, 64}, {300, 2, 192, 128}, {521, 1, 2624, 192}, {1027, 3, 320, 448}}) {
      SCOPED_TRACE(StrCat(kind.name(), " T ", s.tokens, " G ", s.groups, " N ", s.n, " K ", s.k));
      QuantFixture w(random, kind, s.groups * s.n, s.k, QuantOptions{.unaligned = false});
      GuardBuffer<float> x({s.tokens, s.groups * s.k}, random.Normals(s.tokens * s.groups * s.k));
      x[3] = 1e6f, x[4] = 1e-7f;
      GuardBuffer<uint8_t> x_blocks(
          {static_cast<int64_t>(
              ActivationBlocksBytes(static_cast<size_t>(s.tokens), static_cast<size_t>(s.groups * s.k)))},
          AsBlocks(x.span(), static_cast<size_t>(s.tokens), static_cast<size_t>(s.groups * s.k)));
      GuardBuffer<float> want({s.tokens, s.groups * s.n}), got({s.tokens, s.groups * s.n});
      GuardBuffer<uint8_t> y_blocks = Blocks(s.tokens, s.groups * s.n);
      for (int pass = 0; pass < 3; ++pass) {
        Mirror gpu;
        LinearArgs a{.x = gpu.In(x.tensor()), .parts = {{gpu.Weight(w.tensor()), {}}}, .groups = s.groups};
        if (!gpu.ctx().gpu.IsHopper()) GTEST_SKIP() << "not a Hopper GPU";
        if (pass > 0) a.x = {nullptr, DType::kF32, a.x.shape}, a.x_blocks = Bytes(gpu.In(x_blocks.tensor()));
        if (pass == 2) {
          a.parts[0].y_blocks = Bytes(gpu.Out(y_blocks.tensor()));
        } else {
          a.parts[0].y = gpu.Out((pass == 0 ? want : got).tensor());
        }
        gpu.ctx().regime = Regime::kLongPrompt;
        WgmmaLinear(gpu.ctx(), a);
        gpu.Finish();
      }
      EXPECT_TRUE(BitEqual(got.span(), want.span()));
      EXPECT_TRUE(
          BlocksHold(y_blocks.span(), want.span(), static_cast<size_t>(s.tokens), static_cast<size_t>(s.groups * s.n)));
    }
  }
}

// Several matrices in one launch, or one launch per format: the same as each alone.
TEST(CudaActivationBlocks, LinearPartsTogether) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const std::vector<std::vector<QuantCase>> kinds = {
      {kNvfp4, kNvfp4, kNvfp4, kNvfp4}, {kBf16, kNvfp4, kFp8, kNvfp4}, {kMxfp4, kBf16, kNvfp4, kBf16}};
  const std::vector<int64_t> rows = {200, 16, 513, 128};
  for (const auto& formats : kinds) {
    for (const int64_t tokens : {66, 300, 1030}) {
      SCOPED_TRACE(StrCat(formats[0].name(), ", ", formats[1].name(), "... T ", tokens));
      const int64_t k = 192;
      GuardBuffer<float> x({tokens, k}, random.Normals(tokens * k));
      GuardBuffer<uint8_t> x_blocks(
          {static_cast<int64_t>(ActivationBlocksBytes(static_cast<size_t>(tokens), static_cast<size_t>(k)))},
          AsBlocks(x.span(), static_cast<size_t>(tokens), static_cast<size_t>(k)));
      std::vector<std::unique_ptr<QuantFixture>> w;
      for (size_t i = 0; i < rows.size(); ++i)
        w.push_back(std::make_unique<QuantFixture>(random, formats[i], rows[i], k, QuantOptions{.unaligned = false}));
      for (const Regime regime : {Regime::kLongPrompt, Regime::kPrompt}) {
        for (const bool blocks : {false, true}) {
          Mirror gpu;
          LinearArgs a{.x = gpu.In(x.tensor())};
          std::vector<std::unique_ptr<GuardBuffer<float>>> y;
          for (size_t i = 0; i < rows.size(); ++i) {
            y.push_back(std::make_unique<GuardBuffer<float>>(Shape{tokens, rows[i]}));
            a.parts.Add({gpu.Weight(w[i]->tensor()), gpu.Out(y[i]->tensor())});
            if (!gpu.ctx().gpu.IsHopper()) GTEST_SKIP() << "not a Hopper GPU";
          }
          if (blocks) a.x_blocks = Bytes(gpu.In(x_blocks.tensor()));
          gpu.ctx().regime = regime;
          WgmmaLinear(gpu.ctx(), a);
          gpu.Finish();
          for (size_t i = 0; i < rows.size(); ++i) {
            GuardBuffer<float> want({tokens, rows[i]});
            Mirror alone;
            alone.ctx().regime = regime;
            WgmmaLinear(alone.ctx(), {.x = alone.In(x.tensor()),
                                      .parts = {{alone.Weight(w[i]->tensor()), alone.Out(want.tensor())}}});
            alone.Finish();
            EXPECT_TRUE(BitEqual(y[i]->span(), want.span()))
                << "part " << i << (regime == Regime::kPrompt ? " in two numbers" : " in one number")
                << (blocks ? " from blocks" : "");
          }
        }
      }
    }
  }
}

TEST(CudaActivationBlocks, Swiglu) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const BlockSizes& s : {BlockSizes{1, 1, 64, 0}, {70, 1, 576, 0}, {131, 1, 2048, 0}}) {
    const int64_t rows = s.tokens, f = s.n;
    GuardBuffer<float> gate({rows, f}, random.Normals(rows * f, 4)), up({rows, f}, random.Normals(rows * f, 4)),
        y({rows, f});
    gate[1] = std::nanf("");
    GuardBuffer<uint8_t> blocks = Blocks(rows, f);
    Mirror gpu;
    const Tensor g = gpu.In(gate.tensor()), u = gpu.In(up.tensor());
    Swiglu(gpu.ctx(), {.gate = g, .up = u, .limit = 7, .y = gpu.Out(y.tensor())});
    Swiglu(gpu.ctx(), {.gate = g, .up = u, .limit = 7, .y = g, .y_blocks = Bytes(gpu.Out(blocks.tensor()))});
    gpu.Finish();
    ASSERT_TRUE(std::isnan(y[1]));
    y[1] = 0;
    const size_t at = ActivationBlocksByte(static_cast<size_t>(rows), 0, 1);
    EXPECT_EQ(blocks[static_cast<int64_t>(at) + 1] & 0x7E, 0x7E);
    blocks[static_cast<int64_t>(at)] = blocks[static_cast<int64_t>(at) + 1] = 0;
    EXPECT_TRUE(BlocksHold(blocks.span(), y.span(), static_cast<size_t>(rows), static_cast<size_t>(f)))
        << rows << " x " << f;
  }
}

TEST(CudaActivationBlocks, HcBridge) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  for (const int64_t d : {512, 4096}) {
    const int64_t t = 70, h = 4;
    GuardBuffer<float> streams({t, h, d}, random.Normals(t * h * d)), y({t, d}, random.Normals(t * d)),
        norm({d}, random.Normals(d));
    GuardBuffer<float> base({24}, random.Normals(24)), scale({3}, {0.05f, 0.03f, 0.08f}),
        post({t, h}, random.Uniforms(t * h, 0, 2));
    GuardBuffer<float> comb({t, h, h}, random.Uniforms(t * h * h, 0, 0.5)), x({t, d});
    QuantFixture fn(random, {WeightFormat::kF32}, 24, h * d);
    GuardBuffer<uint8_t> blocks = Blocks(t, d);
    Mirror gpu;
    HcBridgeArgs a{.streams = gpu.In(streams.tensor()),
                   .y = gpu.In(y.tensor()),
                   .fn = gpu.Weight(fn.tensor(), /*rows=*/true),
                   .base = gpu.In(base.tensor()),
                   .scale = gpu.In(scale.tensor()),
                   .iters = 20,
                   .eps = 1e-6f,
                   .norm_eps = 1e-6f,
                   .norm = gpu.In(norm.tensor()),
                   .x = gpu.Out(x.tensor()),
                   .post = gpu.In(post.tensor()),
                   .comb = gpu.In(comb.tensor())};
    gpu.ctx().regime = Regime::kLongPrompt;
    ASSERT_TRUE(HcBridgeWritesBlocks(gpu.ctx(), h, d));
    a.x_blocks = Bytes(gpu.Out(blocks.tensor()));
    HcBridge(gpu.ctx(), a);
    gpu.Finish();
    EXPECT_TRUE(BlocksHold(blocks.span(), x.span(), static_cast<size_t>(t), static_cast<size_t>(d))) << d;
  }
}

TEST(CudaActivationBlocks, SparseAttention) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const int64_t heads : {64, 128}) {
    const std::vector<SequenceStep> sequences = {{900, 30}, {0, 53}};
    CacheFixture cache(FullKvSpec({128}), sequences);
    cache.FillRandom(random);
    const int64_t t = cache.num_tokens(), dh = 512;
    GuardBuffer<float> q({t, heads, dh}, random.Normals(t * heads * dh)), kv({t, dh}, random.Normals(t * dh)),
        sink({heads}, random.Normals(heads, 3));
    for (float& x : q.span()) x = std::nearbyint(x * 64) / 64;  // FP16 numbers, below also times a power of two
    for (int64_t i = 0; i < t; ++i) RoundRow(cache.layout().layers[0].window_row, kv.row(i).data());
    GuardBuffer<float> cos_sin({t, 32, 2}, random.Uniforms(t * 64, -1, 1)), out({t, heads, dh});
    GuardBuffer<uint8_t> blocks = Blocks(t, heads * dh);
    Mirror gpu;
    SparseAttentionArgs a{.q = gpu.In(q.tensor()),
                          .kv = gpu.In(kv.tensor()),
                          .sink = gpu.In(sink.tensor()),
                          .cache = gpu.Cache(cache.View(0)),
                          .out = gpu.Out(out.tensor()),
                          .cos_sin = gpu.In(cos_sin.tensor())};
    gpu.ctx().regime = Regime::kLongPrompt;
    if (!SparseAttentionWritesBlocks(gpu.ctx(), ShapeOf(a))) GTEST_SKIP() << "not a Hopper GPU";
    SparseAttention(gpu.ctx(), a);
    a.out_blocks = Bytes(gpu.Out(blocks.tensor()));
    SparseAttention(gpu.ctx(), a);
    // From queries in blocks, with a head's norm that is a power of two: the same.
    GuardBuffer<float> raw({t, heads, dh}, q.values()), squares({t, heads, 8});
    const float eps = 1e-6f, unit = 16;
    for (int64_t i = 0; i < t * heads; ++i) {
      // sqrt(sum / 512 + eps unit^2), with the whole sum in one block
      const float power = std::ldexp(1.0f, static_cast<int>(i % 7) - 3);
      for (int64_t c = 0; c < dh; ++c) raw[i * dh + c] = q[i * dh + c] * power;
      for (int64_t c = 0; c < 8; ++c) squares[i * 8 + c] = c == i % 8 ? 512 * (power * power - eps * unit * unit) : 0;
    }
    GuardBuffer<uint8_t> query_blocks(
        {QueryBlocksBytes(t, heads * dh)},
        AsBlocks(raw.span(), static_cast<size_t>(t), static_cast<size_t>(heads * dh), QueryBlocksByte));
    GuardBuffer<float> from_queries({t, heads, dh});
    GuardBuffer<uint8_t> blocks_from_queries = Blocks(t, heads * dh);
    a.queries = {.blocks = Bytes(gpu.In(query_blocks.tensor())),
                 .squares = gpu.In(squares.tensor()).f32(),
                 .unit = unit,
                 .head_dim = dh,
                 .cos_sin = {}};
    a.norm_eps = eps;
    a.q = {nullptr, DType::kF32, a.q.shape};
    a.out_blocks = Bytes(gpu.Out(blocks_from_queries.tensor()));
    SparseAttention(gpu.ctx(), a);
    a.out_blocks = nullptr, a.out = gpu.Out(from_queries.tensor());
    SparseAttention(gpu.ctx(), a);
    gpu.Finish();
    EXPECT_TRUE(BlocksHold(blocks.span(), out.span(), static_cast<size_t>(t), static_cast<size_t>(heads * dh)))
        << heads;
    EXPECT_TRUE(BitEqual(from_queries.span(), out.span())) << heads;
    EXPECT_TRUE(
        BlocksHold(blocks_from_queries.span(), out.span(), static_cast<size_t>(t), static_cast<size_t>(heads * dh)))
        << heads;
  }
}

// A projection that writes queries: its float32 sums turned by RoPE and rounded, bit for bit, and their squares.
TEST(CudaActivationBlocks, LinearWritesQueries) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  for (const QuantCase& kind : {kNvfp4, kFp8}) {
    for (const BlockSizes& s :
         {BlockSizes{66, 2, 128, 64}, {300, 3, 64, 128}, {517, 1, 512, 192}, {1027, 2, 512, 448}}) {
      const int64_t t = s.tokens, heads = s.groups, dh = s.n, n = heads * dh;
      SCOPED_TRACE(StrCat(kind.name(), " T ", t, " heads ", heads, " of ", dh, " K ", s.k));
      QuantFixture w(random, kind, n, s.k, QuantOptions{.unaligned = false}),
          other(random, kind, 192, s.k, QuantOptions{.unaligned = false});
      GuardBuffer<float> x({t, s.k}, random.Normals(t * s.k)), cos_sin({t, 32, 2}), y({t, n}), squares({t, n / 64}),
          other_y({t, 192}), other_want({t, 192});
      x[5] = 1e6f;
      x[(t - 1) * s.k] = std::nanf("");  // the last token's
      const std::vector<float> turns = random.Uniforms(t * 32, 0, 6);
      for (int64_t i = 0; i < t * 32; ++i)
        cos_sin[2 * i] = std::cos(turns[static_cast<size_t>(i)]),
                    cos_sin[2 * i + 1] = std::sin(turns[static_cast<size_t>(i)]);
      GuardBuffer<uint8_t> blocks({QueryBlocksBytes(t, n)});
      const float unit = 0.25f;
      Mirror gpu;
      LinearArgs a{.x = gpu.In(x.tensor())}, plain{.x = a.x};
      a.parts.Add({.w = gpu.Weight(other.tensor()), .y = gpu.Out(other_y.tensor())});
      a.parts.Add({.w = gpu.Weight(w.tensor()),
                   .y = {nullptr, DType::kF32, {t, n}},
                   .queries = {.blocks = Bytes(gpu.Out(blocks.tensor())),
                               .squares = gpu.Out(squares.tensor()).f32(),
                               .unit = unit,
                               .head_dim = dh,
                               .cos_sin = gpu.In(cos_sin.tensor())}});
      if (!gpu.ctx().gpu.IsHopper()) GTEST_SKIP() << "not a Hopper GPU";
      plain.parts = {{.w = a.parts[1].w, .y = gpu.Out(y.tensor())},
                     {.w = a.parts[0].w, .y = gpu.Out(other_want.tensor())}};
      gpu.ctx().regime = Regime::kLongPrompt;
      WgmmaLinear(gpu.ctx(), a);
      WgmmaLinear(gpu.ctx(), plain);
      gpu.Finish();
      EXPECT_TRUE(BitEqual(other_y.span(), other_want.span()));
      // NaNs have many bit patterns, so the last token is compared separately.
      for (int64_t c = 0; c < n; ++c) {
        const size_t at = QueryBlocksByte(static_cast<size_t>(t), static_cast<size_t>(t - 1), static_cast<size_t>(c));
        ASSERT_EQ(blocks[static_cast<int64_t>(at) + 1] & 0x7E, 0x7E) << c;
        blocks[static_cast<int64_t>(at)] = blocks[static_cast<int64_t>(at) + 1] = 0;
      }
      for (int64_t i = 0; i < n / 64; ++i) EXPECT_TRUE(std::isnan(squares[(t - 1) * (n / 64) + i]));
      for (int64_t i = 0; i < t * heads; ++i) {
        float* head = &y[i * dh];
        for (int64_t c = 0; c < dh; ++c) head[c] *= unit;
        for (int64_t p = 0; p < 32; ++p) {
          const float u = head[dh - 64 + 2 * p], v = head[dh - 64 + 2 * p + 1];
          const float cos = cos_sin[(i / heads * 32 + p) * 2], sin = cos_sin[(i / heads * 32 + p) * 2 + 1];
          head[dh - 64 + 2 * p] = u * cos - v * sin, head[dh - 64 + 2 * p + 1] = u * sin + v * cos;
        }
      }
      for (int64_t c = 0; c < n; ++c) y[(t - 1) * n + c] = 0;
      EXPECT_TRUE(BlocksHold(blocks.span(), y.span(), static_cast<size_t>(t), static_cast<size_t>(n), QueryBlocksByte));
      for (int64_t i = 0; i < (t - 1) * (n / 64); ++i) {
        double want = 0;
        for (int64_t c = 0; c < 64; ++c) {
          const double h = std::clamp<double>(RoundToHalf(y[i * 64 + c]), -65504, 65504);
          want += h * h;
        }
        // 64 exact products, sums of positive numbers: at most 64 roundings, each toward zero at worst.
        ASSERT_NEAR(squares[i], want, 64 * 0x1p-23 * want) << i;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
