// Ops that hand their output to the next matrix product as FP16 numbers in blocks (ops/activation_blocks.cuh): the same numbers
// that the product would make of the float32 output, bit for bit.
#include <cmath>

#include "ops/hc_bridge/hc_bridge.h"
#include "ops/linear/linear_sm90.h"
#include "ops/q_prepare/q_prepare.h"
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

const QuantCase kNvfp4{WeightFormat::kNvfp4}, kFp8{WeightFormat::kFp8Block, DType::kF32}, kBf16{WeightFormat::kBf16}, kMxfp4{WeightFormat::kMxfp4};

GuardBuffer<uint8_t> Blocks(int64_t rows, int64_t cols) {
  return GuardBuffer<uint8_t>(static_cast<int64_t>(ActivationBlocksBytes(static_cast<size_t>(rows), static_cast<size_t>(cols))));
}

uint8_t* Bytes(const Tensor& t) { return static_cast<uint8_t*>(t.data); }

struct Sizes {
  int64_t tokens, groups, n, k;
};

TEST(CudaActivationBlocks, LinearReadsAndWritesThem) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const QuantCase& kind : {kNvfp4, kFp8}) {
    for (const Sizes& s : {Sizes{70, 1, 64, 64}, Sizes{300, 2, 192, 128}, Sizes{521, 1, 2624, 192}, Sizes{1027, 3, 320, 448}}) {
      SCOPED_TRACE(StrCat(kind.name(), " T ", s.tokens, " G ", s.groups, " N ", s.n, " K ", s.k));
      QuantFixture w(random, kind, s.groups * s.n, s.k, QuantOptions{.unaligned = false});
      GuardBuffer<float> x({s.tokens, s.groups * s.k}, random.Normals(s.tokens * s.groups * s.k));
      x[3] = 1e6f, x[4] = 1e-7f;
      GuardBuffer<uint8_t> x_blocks({static_cast<int64_t>(ActivationBlocksBytes(static_cast<size_t>(s.tokens), static_cast<size_t>(s.groups * s.k)))},
                                    AsBlocks(x.span(), static_cast<size_t>(s.tokens), static_cast<size_t>(s.groups * s.k)));
      GuardBuffer<float> want({s.tokens, s.groups * s.n}), got({s.tokens, s.groups * s.n});
      GuardBuffer<uint8_t> y_blocks = Blocks(s.tokens, s.groups * s.n);
      for (int pass = 0; pass < 3; ++pass) {
        Mirror gpu;
        LinearArgs a{.x = gpu.In(x.tensor()), .w = gpu.Weight(w.tensor()), .y = {}, .groups = s.groups};
        if (!LinearPrefillSm90Supports(a.w)) GTEST_SKIP() << "not a Hopper GPU";
        if (pass > 0) a.x = {nullptr, DType::kF32, a.x.shape}, a.x_blocks = Bytes(gpu.In(x_blocks.tensor()));
        if (pass == 2) {
          a.y_blocks = Bytes(gpu.Out(y_blocks.tensor()));
        } else {
          a.y = gpu.Out((pass == 0 ? want : got).tensor());
        }
        LinearPrefillSm90(gpu.ctx(), a, 1);
        gpu.Finish();
      }
      EXPECT_TRUE(BitEqual(got.span(), want.span()));
      EXPECT_TRUE(BlocksHold(y_blocks.span(), want.span(), static_cast<size_t>(s.tokens), static_cast<size_t>(s.groups * s.n)));
    }
  }
}

// Several matrices in one launch, or one a format: what each gives alone.
TEST(CudaActivationBlocks, LinearsTogether) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const std::vector<std::vector<QuantCase>> kinds = {{kNvfp4, kNvfp4, kNvfp4, kNvfp4}, {kBf16, kNvfp4, kFp8, kNvfp4}, {kMxfp4, kBf16, kNvfp4, kBf16}};
  const std::vector<int64_t> rows = {200, 16, 513, 128};
  for (const auto& formats : kinds) {
    for (const int64_t tokens : {66, 300, 1030}) {
      SCOPED_TRACE(StrCat(formats[0].name(), ", ", formats[1].name(), "... T ", tokens));
      const int64_t k = 192;
      GuardBuffer<float> x({tokens, k}, random.Normals(tokens * k));
      GuardBuffer<uint8_t> x_blocks({static_cast<int64_t>(ActivationBlocksBytes(static_cast<size_t>(tokens), static_cast<size_t>(k)))},
                                    AsBlocks(x.span(), static_cast<size_t>(tokens), static_cast<size_t>(k)));
      std::vector<std::unique_ptr<QuantFixture>> w;
      for (size_t i = 0; i < rows.size(); ++i) w.push_back(std::make_unique<QuantFixture>(random, formats[i], rows[i], k, QuantOptions{.unaligned = false}));
      for (const int parts : {1, 2}) {
        for (const bool blocks : {false, true}) {
          Mirror gpu;
          LinearsArgs a{.x = gpu.In(x.tensor())};
          std::vector<std::unique_ptr<GuardBuffer<float>>> y;
          for (size_t i = 0; i < rows.size(); ++i) {
            y.push_back(std::make_unique<GuardBuffer<float>>(Shape{tokens, rows[i]}));
            a.parts[i] = {gpu.Weight(w[i]->tensor()), gpu.Out(y[i]->tensor())};
            if (!LinearPrefillSm90Supports(a.parts[i].w)) GTEST_SKIP() << "not a Hopper GPU";
          }
          a.count = static_cast<int>(rows.size());
          if (blocks) a.x_blocks = Bytes(gpu.In(x_blocks.tensor()));
          LinearsPrefillSm90(gpu.ctx(), a, parts);
          gpu.Finish();
          for (size_t i = 0; i < rows.size(); ++i) {
            GuardBuffer<float> want({tokens, rows[i]});
            Mirror alone;
            LinearPrefillSm90(alone.ctx(), {.x = alone.In(x.tensor()), .w = alone.Weight(w[i]->tensor()), .y = alone.Out(want.tensor())}, parts);
            alone.Finish();
            EXPECT_TRUE(BitEqual(y[i]->span(), want.span())) << "part " << i << " in " << parts << (blocks ? " from blocks" : "");
          }
        }
      }
    }
  }
}

TEST(CudaActivationBlocks, Swiglu) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  for (const Sizes& s : {Sizes{1, 1, 64, 0}, Sizes{70, 1, 576, 0}, Sizes{131, 1, 2048, 0}}) {
    const int64_t rows = s.tokens, f = s.n;
    GuardBuffer<float> gate({rows, f}, random.Normals(rows * f, 4)), up({rows, f}, random.Normals(rows * f, 4)), y({rows, f});
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
    EXPECT_TRUE(BlocksHold(blocks.span(), y.span(), static_cast<size_t>(rows), static_cast<size_t>(f))) << rows << " x " << f;
  }
}

TEST(CudaActivationBlocks, HcBridge) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  for (const int64_t d : {512, 4096}) {
    const int64_t t = 70, h = 4;
    GuardBuffer<float> streams({t, h, d}, random.Normals(t * h * d)), y({t, d}, random.Normals(t * d)), norm({d}, random.Normals(d));
    GuardBuffer<float> base({24}, random.Normals(24)), scale({3}, {0.05f, 0.03f, 0.08f}), post({t, h}, random.Uniforms(t * h, 0, 2));
    GuardBuffer<float> comb({t, h, h}, random.Uniforms(t * h * h, 0, 0.5)), x({t, d});
    QuantFixture fn(random, {WeightFormat::kF32}, 24, h * d);
    GuardBuffer<uint8_t> blocks = Blocks(t, d);
    Mirror gpu;
    HcBridgeArgs a{.streams = gpu.In(streams.tensor()), .y = gpu.In(y.tensor()), .fn = gpu.Weight(fn.tensor(), /*rows=*/true), .base = gpu.In(base.tensor()),
                   .scale = gpu.In(scale.tensor()), .iters = 20, .eps = 1e-6f, .norm_eps = 1e-6f, .norm = gpu.In(norm.tensor()), .x = gpu.Out(x.tensor()),
                   .post = gpu.In(post.tensor()), .comb = gpu.In(comb.tensor())};
    ASSERT_TRUE(HcBridgeWritesBlocks(gpu.ctx(), a));
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
    GuardBuffer<float> q({t, heads, dh}, random.Normals(t * heads * dh)), kv({t, dh}, random.Normals(t * dh)), sink({heads}, random.Normals(heads, 3));
    for (int64_t i = 0; i < t; ++i) RoundRow(cache.layout().layers[0].window_row, kv.row(i).data());
    GuardBuffer<float> cos_sin({t, 32, 2}, random.Uniforms(t * 64, -1, 1)), out({t, heads, dh});
    GuardBuffer<uint8_t> blocks = Blocks(t, heads * dh);
    Mirror gpu;
    SparseAttentionArgs a{.q = gpu.In(q.tensor()), .kv = gpu.In(kv.tensor()), .sink = gpu.In(sink.tensor()), .cache = gpu.Cache(cache.View(0)),
                          .out = gpu.Out(out.tensor()), .cos_sin = gpu.In(cos_sin.tensor())};
    if (!SparseAttentionWritesBlocks(gpu.ctx(), a)) GTEST_SKIP() << "not a Hopper GPU";
    SparseAttention(gpu.ctx(), a);
    a.out_blocks = Bytes(gpu.Out(blocks.tensor()));
    SparseAttention(gpu.ctx(), a);
    // From queries that are FP16 already: the same.
    GuardBuffer<uint16_t> halves({t, heads, dh}, AsHalves(q.span()));
    GuardBuffer<float> from_halves({t, heads, dh});
    GuardBuffer<uint8_t> blocks_from_halves = Blocks(t, heads * dh);
    a.q_half = static_cast<const uint16_t*>(gpu.In(halves.tensor()).data);
    a.q = {nullptr, DType::kF32, a.q.shape};
    a.out_blocks = Bytes(gpu.Out(blocks_from_halves.tensor()));
    SparseAttention(gpu.ctx(), a);
    a.out_blocks = nullptr, a.out = gpu.Out(from_halves.tensor());
    SparseAttention(gpu.ctx(), a);
    gpu.Finish();
    EXPECT_TRUE(BlocksHold(blocks.span(), out.span(), static_cast<size_t>(t), static_cast<size_t>(heads * dh))) << heads;
    EXPECT_TRUE(BitEqual(from_halves.span(), out.span())) << heads;
    EXPECT_TRUE(BlocksHold(blocks_from_halves.span(), out.span(), static_cast<size_t>(t), static_cast<size_t>(heads * dh))) << heads;
  }
}

TEST(CudaActivationBlocks, QueriesAsFp16) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  const int64_t t = 37, heads = 3, dh = 512;
  CacheFixture cache(FullKvSpec({0}), {{0, t}});
  GuardBuffer<float> q({t, heads, dh}, random.Normals(t * heads * dh)), cos_sin({t, 32, 2}, random.Uniforms(t * 64, -1, 1)), got({t, heads, dh}, q.values());
  q[0] = got[0] = 1e30f;
  GuardBuffer<uint16_t> halves({t, heads, dh});
  Mirror gpu;
  const Tensor angles = gpu.In(cos_sin.tensor());
  const CacheView view = gpu.Cache(cache.View(0));
  QPrepare(gpu.ctx(), {.q = gpu.Out(got.tensor()), .cos_sin = angles, .norm_eps = 1e-6f, .cache = view});
  QPrepare(gpu.ctx(), {.q = gpu.In(q.tensor()), .q_half = static_cast<uint16_t*>(gpu.Out(halves.tensor()).data), .cos_sin = angles, .norm_eps = 1e-6f, .cache = view});
  gpu.Finish();
  const std::vector<uint16_t> want = AsHalves(got.span());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(halves[static_cast<int64_t>(i)], want[i]) << i << ": " << got[static_cast<int64_t>(i)];
}

}  // namespace
}  // namespace dsv4::test
