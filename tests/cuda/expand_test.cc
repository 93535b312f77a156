// q_prepare and the linears before it in one launch: the same bits as one after the other.
#include <deque>
#include <limits>

#include "ops/q_prepare/q_prepare.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void LinearCuda(const ExecContext& ctx, const LinearArgs& args);
void QPrepareCuda(const ExecContext& ctx, const QPrepareArgs& args);
}  // namespace dsv4

namespace dsv4::test {
namespace {

constexpr int64_t kHead = 512, kIndexHead = 128, kPairs = 32;

struct ExpandCase {
  int64_t heads, k, ratio, position;
  KvDtype kv = KvDtype::kFp8;
  IndexDtype index = IndexDtype::kFp4;
  int64_t tokens = 1;
  int64_t of_index = 0;  // index heads; 0: the same number as `heads`
  int64_t index_heads() const { return of_index > 0 ? of_index : heads; }
};

struct Projections {  // of one compressor
  Projections(Random& random, const CompressorLayout& c, int64_t t)
      : values({t, c.overlap * c.dim}, random.Normals(t * c.overlap * c.dim)),
        gates({t, c.overlap * c.dim}, random.Normals(t * c.overlap * c.dim, 2)),
        slot_bias({c.ratio, c.overlap * c.dim}, random.Normals(c.ratio * c.overlap * c.dim)),
        norm({c.dim}, random.Normals(c.dim)),
        frequencies({kPairs}, random.Uniforms(kPairs, 0, 1)) {}
  CompressArgs On(Mirror& gpu, const CacheView& cache, const CompressorLayout& layout, bool hadamard) {
    return {.values = gpu.In(values.tensor()),
            .gates = gpu.Out(gates.tensor()),
            .slot_bias = gpu.In(slot_bias.tensor()),
            .norm = gpu.In(norm.tensor()),
            .norm_eps = 1e-6f,
            .frequencies = gpu.In(frequencies.tensor()),
            .hadamard = hadamard,
            .cache = cache,
            .layout = &layout};
  }
  GuardBuffer<float> values, gates, slot_bias, norm, frequencies;
};

struct Result {
  std::vector<float> q, index_q, kv, gates;
  std::vector<uint8_t> memory;
};

Result Prepared(const ExpandCase& c, const QuantFixture& q_b, const QuantFixture& index_q_b, bool expands) {
  Random random(5);  // the same data with and without `expands`
  const int64_t t = c.tokens;
  CacheFixture cache(FullKvSpec({c.ratio}, c.kv, c.index), {{c.position, t}});
  cache.FillRandom(random);
  const LayerLayout& layer = cache.layout().layers[0];
  const bool indexes = layer.index.ratio != 0;
  GuardBuffer<float> x({t, c.k}, random.Normals(t * c.k)), norm({c.k}, random.Normals(c.k)),
      kv({t, kHead}, random.Normals(t * kHead)), kv_norm({kHead}, random.Normals(kHead)),
      angles({t, kPairs, 2}, random.Normals(t * 2 * kPairs)), q({t, c.heads, kHead}),
      index_q({t, c.index_heads(), kIndexHead});
  std::deque<Projections> projections;
  for (const CompressorLayout* layout : {&layer.main, &layer.index}) {
    if (layout->ratio != 0) projections.emplace_back(random, *layout, t);
  }
  Mirror gpu;
  const Tensor to = gpu.Out(q.tensor()), index_to = indexes ? gpu.Out(index_q.tensor()) : Tensor{};
  LinearArgs linears{.x = gpu.In(x.tensor()), .norm = gpu.In(norm.tensor()), .norm_eps = 1e-6f};
  linears.parts.Add({gpu.Weight(q_b.tensor()), to.Reshaped({t, c.heads * kHead})});
  if (indexes)
    linears.parts.Add({gpu.Weight(index_q_b.tensor()), index_to.Reshaped({t, c.index_heads() * kIndexHead})});
  QPrepareArgs args{.q = to,
                    .kv = gpu.Out(kv.tensor()),
                    .kv_norm = gpu.In(kv_norm.tensor()),
                    .index_q = index_to,
                    .cos_sin = gpu.In(angles.tensor()),
                    .norm_eps = 1e-6f,
                    .index_dtype = c.index,
                    .cache = gpu.Cache(cache.View(0)),
                    .append = true};
  for (size_t i = 0; i < projections.size(); ++i) {
    args.compress[i] = projections[i].On(gpu, args.cache, i == 0 ? layer.main : layer.index, i == 1);
    ++args.num_compress;
  }
  EXPECT_TRUE(QPrepareExpands(gpu.ctx(), ShapeOf(args, linears)));
  if (expands) {
    args.expands = &linears;
  } else {
    LinearCuda(gpu.ctx(), linears);
  }
  QPrepareCuda(gpu.ctx(), args);
  gpu.Finish();
  Result r{.q = q.values(),
           .index_q = indexes ? index_q.values() : std::vector<float>{},
           .kv = kv.values(),
           .gates = {},
           .memory = {}};
  for (Projections& p : projections) r.gates.insert(r.gates.end(), p.gates.data(), p.gates.data() + p.gates.size());
  const SequenceView& seq = cache.sequences()[0];
  r.memory.assign(seq.fixed, seq.fixed + cache.layout().fixed_bytes);
  for (int64_t i = 0; cache.layout().page_bytes > 0 && i <= (c.position + t - 1) / cache.layout().page_tokens; ++i) {
    r.memory.insert(r.memory.end(), seq.pages[i], seq.pages[i] + cache.layout().page_bytes);
  }
  return r;
}

void ExpectTheSameBits(const ExpandCase& c) {
  SCOPED_TRACE(StrCat("heads ", c.heads, ", ", c.index_heads(), " K ", c.k, " ratio ", c.ratio, " at ", c.position,
                      " tokens ", c.tokens));
  Random random(6);
  const QuantFixture q_b(random, {WeightFormat::kNvfp4}, c.heads * kHead, c.k),
      index_q_b(random, {WeightFormat::kNvfp4}, c.index_heads() * kIndexHead, c.k);
  const Result want = Prepared(c, q_b, index_q_b, false), got = Prepared(c, q_b, index_q_b, true),
               again = Prepared(c, q_b, index_q_b, true);
  EXPECT_TRUE(BitEqual(got.q, want.q));
  EXPECT_TRUE(BitEqual(got.index_q, want.index_q));
  EXPECT_TRUE(BitEqual(got.kv, want.kv));
  EXPECT_TRUE(BitEqual(got.gates, want.gates));
  EXPECT_TRUE(got.memory == want.memory);
  EXPECT_TRUE(BitEqual(again.q, want.q) && again.memory == want.memory);
}

TEST(CudaQPrepareExpand, GivesTheBitsOfLinearsAndQPrepare) {
  DSV4_GPU_OR_SKIP();
  for (const ExpandCase& c : {ExpandCase{64, 1024, 0, 130},
                              {64, 1024, 4, 130},
                              {64, 1024, 4, 131},
                              {64, 208, 4, 7, KvDtype::kBf16, IndexDtype::kBf16},
                              {64, 1024, 128, 255},
                              {64, 1536, 128, 256, KvDtype::kF32},
                              {40, 64, 4, 1023, KvDtype::kF32, IndexDtype::kF32},
                              {33, 1008, 128, 0}}) {
    ExpectTheSameBits(c);
  }
}

// A few tokens of one sequence, with rows that end at any of them.
TEST(CudaQPrepareExpand, GivesTheBitsOfLinearsAndQPrepareForAFewTokens) {
  DSV4_GPU_OR_SKIP();
  for (const int64_t tokens : {2, 3, 4}) {
    for (const int64_t position : {0, 121, 125, 126, 127, 128, 130, 253})
      ExpectTheSameBits(
          {.heads = 64, .k = 1024, .ratio = position % 2 == 0 ? 4 : 128, .position = position, .tokens = tokens});
    ExpectTheSameBits({40, 64, 4, 1021, KvDtype::kF32, IndexDtype::kF32, tokens});
    ExpectTheSameBits({64, 208, 4, 7, KvDtype::kBf16, IndexDtype::kBf16, tokens});
    ExpectTheSameBits({.heads = 33, .k = 1536, .ratio = 0, .position = 130, .tokens = tokens});
  }
}

// The heads of one of several ranks, and all index heads, which have their own blocks. Below some number of rows K is
// divided.
TEST(CudaQPrepareExpand, GivesTheBitsWithAPartOfTheHeads) {
  DSV4_GPU_OR_SKIP();
  for (const ExpandCase& c : {ExpandCase{32, 1024, 4, 131, KvDtype::kFp8, IndexDtype::kFp4, 1, 64},
                              {32, 1024, 4, 130, KvDtype::kBf16, IndexDtype::kFp4, 1, 64},
                              {32, 1024, 0, 130},
                              {32, 1024, 128, 255},
                              {32, 1536, 128, 256, KvDtype::kF32},
                              {32, 1536, 4, 1023, KvDtype::kBf16, IndexDtype::kBf16, 1, 64},
                              {16, 1024, 4, 7, KvDtype::kFp8, IndexDtype::kF32, 1, 64},
                              {16, 1536, 4, 3, KvDtype::kFp8, IndexDtype::kFp4, 1, 64},
                              {8, 1008, 128, 383},
                              {33, 208, 4, 1023, KvDtype::kFp8, IndexDtype::kFp4, 1, 31},
                              {4, 512, 4, 131, KvDtype::kFp8, IndexDtype::kFp4, 1, 5}}) {
    ExpectTheSameBits(c);
  }
}

TEST(CudaQPrepareExpand, GivesTheBitsWithAPartOfTheHeadsForAFewTokens) {
  DSV4_GPU_OR_SKIP();
  for (const int64_t tokens : {2, 3, 4}) {
    for (const int64_t position : {0, 126, 127, 253}) {
      const bool indexes = position % 2 == 0;
      ExpectTheSameBits({.heads = 32,
                         .k = 1024,
                         .ratio = indexes ? 4 : 128,
                         .position = position,
                         .tokens = tokens,
                         .of_index = indexes ? 64 : 0});
    }
    for (const ExpandCase& c : {ExpandCase{32, 1536, 0, 130, KvDtype::kF32, IndexDtype::kF32, tokens},
                                {32, 1536, 4, 1022, KvDtype::kBf16, IndexDtype::kBf16, tokens, 64},
                                {8, 1008, 128, 381, KvDtype::kFp8, IndexDtype::kFp4, tokens},
                                {33, 208, 4, 1023, KvDtype::kFp8, IndexDtype::kFp4, tokens, 31},
                                {4, 512, 4, 131, KvDtype::kFp8, IndexDtype::kFp4, tokens, 5}}) {
      ExpectTheSameBits(c);
    }
  }
  ExpectTheSameBits({16, 2048, 4, 7, KvDtype::kFp8, IndexDtype::kF32, 4, 64});
  ExpectTheSameBits({32, 4096, 4, 130, KvDtype::kFp8, IndexDtype::kFp4, 3, 64});
}

// More blocks than multiprocessors; K too short for eight segments, or too long for the segments of several tokens.
TEST(QPrepareExpand, ShapesThatFit) {
  const ExecContext ctx{.device = DeviceKind::kCuda, .gpu = {.arch = 90, .multiprocessors = 132}};
  const uint8_t somewhere = 0;
  const auto can = [&](int64_t heads, int64_t index_heads, int64_t k, int64_t tokens = 1) {
    const auto matrix = [&](int64_t rows) {
      return QuantTensor{.format = WeightFormat::kNvfp4, .rows = rows, .cols = k, .codes = &somewhere};
    };
    ExpandShape shape{.num_tokens = tokens, .append = true, .heads = heads, .head_dim = kHead, .rope_dim = 2 * kPairs};
    shape.num_compress = 2;
    shape.q_b = matrix(heads * kHead);
    if (index_heads > 0) {
      shape.index_heads = index_heads, shape.index_head_dim = kIndexHead;
      shape.index_q_b = matrix(index_heads * kIndexHead);
    }
    return QPrepareExpands(ctx, shape);
  };
  EXPECT_TRUE(can(64, 64, 1024) && can(32, 64, 1024) && can(16, 64, 1024) && can(32, 0, 1024));
  EXPECT_TRUE(can(64, 64, 1536) && can(8, 64, 1536) && can(64, 64, 1024, 4));
  EXPECT_TRUE(can(32, 64, 1024, 4) && can(32, 64, 4096, 4) && can(16, 64, 2048, 4) && can(32, 0, 1024, 2));
  EXPECT_FALSE(can(128, 64, 1536) || can(40, 64, 1024) || can(32, 64, 1024, 5) || can(16, 64, 2064, 2));
  EXPECT_TRUE(can(32, 0, 512) && can(36, 0, 448));
  EXPECT_FALSE(can(32, 0, 448));
}

// Little work, so that compute-sanitizer is fast.
TEST(CudaQPrepareExpand, GivesTheBitsShort) {
  DSV4_GPU_OR_SKIP();
  for (ExpandCase c : {ExpandCase{64, 256, 4, 131}, {33, 208, 128, 255}}) {
    for (c.tokens = 1; c.tokens <= 4; c.tokens += 3) ExpectTheSameBits(c);
  }
  for (const int64_t tokens : {1, 4}) {
    ExpectTheSameBits({36, 64, 4, 131, KvDtype::kFp8, IndexDtype::kFp4, tokens, 5});
    ExpectTheSameBits({8, 512, 4, 131, KvDtype::kFp8, IndexDtype::kFp4, tokens, 6});
  }
}

// Other shapes and formats, tokens of several sequences, inputs with three terms: not in one launch.
TEST(CudaQPrepareExpand, OnlyWhereItCan) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  const QuantFixture fp8(random, {WeightFormat::kFp8Block}, 64 * kHead, 64),
      nvfp4(random, {WeightFormat::kNvfp4}, 64 * kHead, 64);
  CacheFixture cache(FullKvSpec({0}), {{3, 1}});
  GuardBuffer<float> x({1, 64}), norm({64}), q({1, 64, kHead}), kv({1, kHead}), angles({1, kPairs, 2});
  Mirror gpu;
  const auto can = [&](const QuantFixture& w, bool append, bool f32_inputs) {
    QPrepareArgs args{
        .q = q.tensor(), .kv = kv.tensor(), .cos_sin = angles.tensor(), .cache = cache.View(0), .append = append};
    LinearArgs linears{.x = x.tensor(), .norm = norm.tensor()};
    linears.parts.Add({gpu.Weight(w.tensor()), q.tensor().Reshaped({1, 64 * kHead})});
    gpu.ctx().f32_inputs = f32_inputs;
    return QPrepareExpands(gpu.ctx(), ShapeOf(args, linears));
  };
  EXPECT_TRUE(can(nvfp4, true, false));
  EXPECT_FALSE(can(fp8, true, false));
  EXPECT_FALSE(can(nvfp4, false, false));
  EXPECT_FALSE(can(nvfp4, true, true));
  ExpandShape shape{.num_tokens = 4, .append = true, .heads = 64, .head_dim = kHead, .rope_dim = 64};
  shape.q_b = gpu.Weight(nvfp4.tensor());
  gpu.ctx().f32_inputs = false;
  EXPECT_TRUE(QPrepareExpands(gpu.ctx(), shape));
  shape.num_sequences = 2;
  EXPECT_FALSE(QPrepareExpands(gpu.ctx(), shape));
  shape.num_sequences = 1, shape.num_tokens = 5;
  EXPECT_FALSE(QPrepareExpands(gpu.ctx(), shape));
}

}  // namespace
}  // namespace dsv4::test
