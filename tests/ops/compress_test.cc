#include "ops/compress/compress.h"

#include <algorithm>
#include <cmath>

#include "ops/kernels.h"
#include "ops/q_prepare/q_prepare.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/guard_buffer.h"

DSV4_DECLARE_KERNELS(CompressCpu, CompressArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<CompressArgs>> kCompressKernels = DSV4_KERNELS(CompressCpu);

// The projections of one sequence's tokens, and the parameters of a compressor.
struct Prompt {
  Prompt(Random& random, const CompressorLayout& layout, int64_t num_tokens)
      : width(layout.overlap * layout.dim),
        values(random.Normals(num_tokens * width)),
        gates(random.Normals(num_tokens * width, 2)),
        slot_bias({layout.ratio, width}, random.Normals(layout.ratio * width)),
        norm({layout.dim}, random.Normals(layout.dim)),
        frequencies({4}, {1.0f, 0.1f, 0.003f, 1e-5f}) {}
  int64_t width;
  std::vector<float> values, gates;
  GuardBuffer<float> slot_bias, norm, frequencies;
};

void CompressOnGpu(const ExecContext&, const CompressArgs& a) {
  Mirror gpu;
  CompressArgs b = a;
  b.values = gpu.In(a.values), b.gates = gpu.Out(a.gates), b.slot_bias = gpu.In(a.slot_bias);
  b.norm = gpu.In(a.norm), b.frequencies = gpu.In(a.frequencies), b.cache = gpu.Cache(a.cache);
  Compress(gpu.ctx(), b);
  gpu.Finish();
}

void CompressByReference(const ExecContext&, const CompressArgs& a) { Compress(Reference(), a); }

// The path of a decode step on a GPU: q_prepare also compresses.
void CompressByPrepareOnGpu(const ExecContext&, const CompressArgs& a) {
  Mirror gpu;
  CompressArgs b = a;
  b.values = gpu.In(a.values), b.gates = gpu.Out(a.gates), b.slot_bias = gpu.In(a.slot_bias);
  b.norm = gpu.In(a.norm), b.frequencies = gpu.In(a.frequencies), b.cache = gpu.Cache(a.cache);
  const auto filled = [](int64_t n, float x) { return std::vector<float>(static_cast<size_t>(n), x); };
  const int64_t rows = a.cache.num_tokens, dh = a.cache.layer->window_row.dim;
  const int64_t pairs = dh == 512 ? 32 : 8;  // of FullKvSpec and TinyKvSpec
  GuardBuffer<float> kv({rows, dh}, filled(rows * dh, 1.0f)), norm({dh}, filled(dh, 1.0f));
  GuardBuffer<float> cos_sin({rows, pairs, 2}, filled(2 * rows * pairs, 0.5f));
  QPrepare(gpu.ctx(), {.kv = gpu.Out(kv.tensor()),
                       .kv_norm = gpu.In(norm.tensor()),
                       .cos_sin = gpu.In(cos_sin.tensor()),
                       .norm_eps = 1e-6f,
                       .cache = b.cache,
                       .append = true,
                       .compress = {b},
                       .num_compress = 1});
  gpu.Finish();
}

struct Compressed {
  std::vector<uint8_t> bytes;  // of all emitted rows
  std::vector<float> rows;     // decoded
  std::vector<float> state;    // rows of the last tokens, in order of position
  std::vector<float> gates;    // with their bias
};

// Reads sequence 0 of `cache` after tokens up to `end`, from `first_position`.
void ReadBack(const CacheFixture& cache, const CompressorLayout& layout, int64_t first_position, int64_t end,
              Compressed& out) {
  const SequenceView& seq = cache.sequences()[0];
  for (int64_t row = first_position / layout.ratio; row < end / layout.ratio; ++row) {
    const RowSlot slot = EmittedRow(layout, seq, row);
    const uint8_t* data = slot.rows.data(slot.index);
    const uint8_t* scale = slot.rows.scale(slot.index);
    out.bytes.insert(out.bytes.end(), data, data + layout.row.data_bytes);
    out.bytes.insert(out.bytes.end(), scale, scale + layout.row.scale_bytes);
    out.rows.resize(out.rows.size() + static_cast<size_t>(layout.dim));
    slot.rows.Read(slot.index, out.rows.data() + out.rows.size() - layout.dim);
  }
  const int64_t width = 2 * layout.overlap * layout.dim;
  for (int64_t p = std::max(first_position, end - layout.num_slots); p < end; ++p) {
    const float* row = StateRow(layout, seq, p);
    out.state.insert(out.state.end(), row, row + width);
  }
}

// Feeds tokens [0, num_tokens) of `prompt` to sequence 0 of a new cache, in steps of the given sizes, repeated. A
// second sequence gets the first `beside` tokens of the same prompt in every step.
Compressed Feed(const OpFn<CompressArgs> run, const ExecContext& ctx, const KvSpec& spec, bool index, Prompt& prompt,
                int64_t num_tokens, const std::vector<int64_t>& sizes, int64_t first_position = 0, int64_t beside = 0) {
  std::vector<SequenceStep> steps = {{.cached = first_position, .tokens = 0}};
  if (beside > 0) steps.push_back({.cached = 0, .tokens = 0});
  CacheFixture cache(spec, steps);
  const CompressorLayout& layout = index ? cache.layout().layers[0].index : cache.layout().layers[0].main;
  Compressed out;
  size_t next = 0;
  const int64_t width = prompt.width;
  for (int64_t done = 0; done < num_tokens;) {
    const int64_t t = std::min(sizes[next++ % sizes.size()], num_tokens - done);
    cache.Advance(beside > 0 ? std::vector<int64_t>{t, beside} : std::vector<int64_t>{t});
    const auto part = [&](const std::vector<float>& all) {
      std::vector<float> x(all.begin() + done * width, all.begin() + (done + t) * width);
      x.insert(x.end(), all.begin(), all.begin() + beside * width);
      return x;
    };
    GuardBuffer<float> values({t + beside, width}, part(prompt.values));
    GuardBuffer<float> gates({t + beside, width}, part(prompt.gates));
    run(ctx, {.values = values.tensor(),
              .gates = gates.tensor(),
              .slot_bias = prompt.slot_bias.tensor(),
              .norm = prompt.norm.tensor(),
              .norm_eps = 1e-6f,
              .frequencies = prompt.frequencies.tensor(),
              .hadamard = index,
              .cache = cache.View(0),
              .layout = &layout});
    out.gates.insert(out.gates.end(), gates.data(), gates.data() + t * width);
    done += t;
  }
  ReadBack(cache, layout, first_position, first_position + num_tokens, out);
  return out;
}

// The compressors of a spec with this ratio: the main one and, at ratio 4, the index's.
std::vector<bool> Indexes(int64_t ratio) {
  return ratio == 4 ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

const CompressorLayout& LayoutOf(const KvLayout& layout, bool index) {
  return index ? layout.layers[0].index : layout.layers[0].main;
}

// The error of exp is 2 ulp, that of its argument one rounding of |gate - max| <= 30. Weights and products are sums of
// at most `slots` terms. So a pooled channel is off by at most (2 * 33 u + gamma_(2 slots + 6)) max |value|. Relative
// to the root mean square of the row, and up to the norm's own few roundings, the row is off by the same. |value| <= 6,
// |norm| <= 6; a rotation and a Hadamard step add 8 roundings; a GPU's norm, in float32 in blocks of 256, adds 16 more.
// A row's root mean square is above 0.05 in these data.
double CompressTolerance(On on, int64_t ratio) {
  const int64_t slots = ratio == 4 ? 8 : 128, norm = on == On::kGpu ? 32 : 16;
  return (Gamma(66) + Gamma(2 * slots + 6) + Gamma(norm)) * 6 * 6 / 0.05;
}

void ExpectReferencesRows(On on, const KvSpec& spec, bool index, Prompt& prompt, int64_t tokens,
                          const std::vector<std::vector<int64_t>>& cuts, int64_t first_position = 0) {
  const int64_t ratio = spec.compress_ratios[0];
  const Compressed want = Feed(CompressByReference, {}, spec, index, prompt, tokens, {tokens}, first_position);
  ForEachKernel(on, kCompressKernels, CompressOnGpu, [&](const auto run) {
    for (const std::vector<int64_t>& sizes : cuts) {
      const Compressed got = Feed(run, TwoThreads(), spec, index, prompt, tokens, sizes, first_position);
      EXPECT_TRUE(Near(got.rows, want.rows, CompressTolerance(on, ratio)));
      EXPECT_TRUE(BitEqual(got.state, want.state));
      EXPECT_TRUE(BitEqual(got.gates, want.gates));
    }
  });
}

DSV4_DEVICE_TEST(Compress, MatchesReference) {
  Random random(1);
  for (const bool full : {false, true}) {
    for (const int64_t ratio : {4, 128}) {
      for (const bool index : Indexes(ratio)) {
        const KvSpec spec = full ? FullKvSpec({ratio}, KvDtype::kF32, IndexDtype::kF32)
                                 : TinyKvSpec({ratio}, KvDtype::kF32, IndexDtype::kF32);
        Prompt prompt(random, LayoutOf(MakeKvLayout(spec), index), 300);
        ExpectReferencesRows(on, spec, index, prompt, 300, {{300}});
      }
    }
  }
}

// Little work, so that compute-sanitizer is fast: each ratio with rows that begin in a chunk, end in one, or are wholly
// in one.
DSV4_DEVICE_TEST(Compress, Short) {
  Random random(12);
  for (const int64_t ratio : {4, 128}) {
    const KvSpec spec = TinyKvSpec({ratio}, KvDtype::kF32, IndexDtype::kF32);
    const int64_t tokens = ratio + 9;
    Prompt prompt(random, LayoutOf(MakeKvLayout(spec), false), tokens);
    ExpectReferencesRows(on, spec, false, prompt, tokens, {{tokens}, {tokens - 7, 7}});
  }
}

// In FP8 and FP4 the two sides may round a channel to neighbouring codes if it is within their float32 difference
// (about 1e-5 of a step of 2^-4 .. 2^-1) of a tie: below 1 in 1,000 channels, and never by more than one code. A scale
// would change if the block's largest value were this close to a power of two times 448 or 6, which does not occur in
// these data.
DSV4_DEVICE_TEST(Compress, RoundedRowsMatchUpToTies) {
  Random random(5);
  for (const int64_t ratio : {4, 128}) {
    for (const bool index : Indexes(ratio)) {
      const KvSpec spec = FullKvSpec({ratio});
      Prompt prompt(random, LayoutOf(MakeKvLayout(spec), index), 1300);
      const Compressed want = Feed(CompressByReference, {}, spec, index, prompt, 1300, {1300});
      ForEachKernel(on, kCompressKernels, CompressOnGpu, [&](const auto run) {
        const Compressed got = Feed(run, TwoThreads(), spec, index, prompt, 1300, {1300});
        ASSERT_EQ(got.rows.size(), want.rows.size());
        int64_t flips = 0;
        for (size_t i = 0; i < got.rows.size(); ++i) {
          if (got.rows[i] == want.rows[i]) continue;
          ++flips;
          ASSERT_LE(std::fabs(got.rows[i] - want.rows[i]), (index ? 0.5 : 0.126) * std::fabs(want.rows[i]) + 1e-2) << i;
        }
        EXPECT_LE(flips, static_cast<int64_t>(got.rows.size()) / 1000 + 1);
      });
    }
  }
}

void ExpectSameBytes(const Compressed& got, const Compressed& want, const std::string& what) {
  EXPECT_EQ(got.bytes, want.bytes) << what;
  EXPECT_TRUE(BitEqual(got.state, want.state)) << what;
  EXPECT_TRUE(BitEqual(got.gates, want.gates)) << what;
}

// For every chunking of the prompt, also one token at a time, and with any other sequences in a step, the cache holds
// the same bytes.
DSV4_DEVICE_TEST(Compress, EveryChunkingGivesTheSameBytes) {
  Random random(2);
  for (const int64_t ratio : {4, 128}) {
    for (const bool index : Indexes(ratio)) {
      const KvSpec spec = TinyKvSpec({ratio});
      const int64_t num_tokens = 391;
      Prompt prompt(random, LayoutOf(MakeKvLayout(spec), index), num_tokens);
      ForEachKernel(on, kCompressKernels, CompressOnGpu, [&](const auto run) {
        const Compressed want = Feed(run, {}, spec, index, prompt, num_tokens, {num_tokens});
        for (const ExecContext& ctx : ThreadCounts()) {
          for (const std::vector<int64_t>& sizes :
               std::vector<std::vector<int64_t>>{{1}, {2}, {3}, {4}, {5}, {7}, {127}, {128}, {129}, {1, 3, 130, 2}}) {
            ExpectSameBytes(Feed(run, ctx, spec, index, prompt, num_tokens, sizes), want, StrCat("by ", sizes[0]));
          }
          for (const int64_t beside : {1, 5}) {
            ExpectSameBytes(Feed(run, ctx, spec, index, prompt, num_tokens, {1, 9}, 0, beside), want,
                            StrCat("beside ", beside));
          }
          if (on == On::kGpu) break;  // a GPU has no thread count
        }
      });
    }
  }
}

DSV4_DEVICE_TEST(Compress, SequencesOfAStepDoNotMix) {
  Random random(3);
  const KvSpec spec = TinyKvSpec({4});
  const KvLayout layout = MakeKvLayout(spec);
  const int64_t t = 19;
  Prompt first(random, layout.layers[0].main, t);
  const int64_t width = first.width;
  ForEachKernel(on, kCompressKernels, CompressOnGpu, [&](const auto run) {
    const Compressed want = Feed(run, {}, spec, false, first, t, {t});
    CacheFixture cache(spec, {{.cached = 0, .tokens = 5}, {.cached = 0, .tokens = 0}, {.cached = 0, .tokens = t}});
    std::vector<float> values = random.Normals(5 * width), gates = random.Normals(5 * width);
    values.insert(values.end(), first.values.begin(), first.values.end());
    gates.insert(gates.end(), first.gates.begin(), first.gates.end());
    GuardBuffer<float> v({5 + t, width}, values), g({5 + t, width}, gates);
    run(TwoThreads(), {.values = v.tensor(),
                       .gates = g.tensor(),
                       .slot_bias = first.slot_bias.tensor(),
                       .norm = first.norm.tensor(),
                       .norm_eps = 1e-6f,
                       .frequencies = first.frequencies.tensor(),
                       .cache = cache.View(0),
                       .layout = &cache.layout().layers[0].main});
    std::vector<uint8_t> bytes;
    for (int64_t row = 0; row < t / 4; ++row) {
      const RowSlot slot = EmittedRow(cache.layout().layers[0].main, cache.sequences()[2], row);
      const RowFormat& f = slot.rows.format;
      bytes.insert(bytes.end(), slot.rows.data(slot.index), slot.rows.data(slot.index) + f.data_bytes);
      bytes.insert(bytes.end(), slot.rows.scale(slot.index), slot.rows.scale(slot.index) + f.scale_bytes);
    }
    EXPECT_EQ(bytes, want.bytes);
  });
}

// The number of tokens equals the number of sequences, but not every sequence has one: rows are still in order.
DSV4_DEVICE_TEST(Compress, AsManyTokensAsSequences) {
  Random random(6);
  const KvSpec spec = TinyKvSpec({4}, KvDtype::kF32);
  const KvLayout layout = MakeKvLayout(spec);
  Prompt prompt(random, layout.layers[0].main, 16);
  const int64_t n = 6 * prompt.width;
  const auto first_row = [&](const OpFn<CompressArgs> run, const ExecContext& ctx) {
    CacheFixture cache(spec, {{0, 6}, {8, 0}, {8, 0}, {8, 0}, {8, 0}, {8, 0}});
    GuardBuffer<float> values({6, prompt.width}, {prompt.values.begin(), prompt.values.begin() + n}),
        gates({6, prompt.width}, {prompt.gates.begin(), prompt.gates.begin() + n});
    run(ctx, {.values = values.tensor(),
              .gates = gates.tensor(),
              .slot_bias = prompt.slot_bias.tensor(),
              .norm = prompt.norm.tensor(),
              .norm_eps = 1e-6f,
              .frequencies = prompt.frequencies.tensor(),
              .cache = cache.View(0),
              .layout = &cache.layout().layers[0].main});
    const RowSlot slot = EmittedRow(cache.layout().layers[0].main, cache.sequences()[0], 0);
    std::vector<float> row(static_cast<size_t>(spec.head_dim));
    slot.rows.Read(slot.index, row.data());
    return row;
  };
  const std::vector<float> want = first_row(CompressByReference, {});
  ForEachKernel(on, kCompressKernels, CompressOnGpu, [&](const auto run) {
    EXPECT_TRUE(Near(first_row(run, TwoThreads()), want, CompressTolerance(on, 4)));
  });
}

// Near the end of a million-token context: positions, rows and pages stay exact.
DSV4_DEVICE_TEST(Compress, LargePositions) {
  Random random(4);
  const KvSpec spec = TinyKvSpec({128}, KvDtype::kF32);
  Prompt prompt(random, LayoutOf(MakeKvLayout(spec), false), 256);
  ExpectReferencesRows(on, spec, false, prompt, 256, {{100}}, 1'048'576 - 256);
}

// q_prepare compresses a decode step's tokens to the same bits.
TEST(CudaCompress, QPrepareDoesTheSame) {
  DSV4_GPU_OR_SKIP();
  Random random(11);
  for (const bool full : {false, true}) {
    for (const int64_t ratio : {4, 128}) {
      for (const bool index : Indexes(ratio)) {
        const KvSpec spec = full ? FullKvSpec({ratio}) : TinyKvSpec({ratio});
        const int64_t tokens = ratio == 4 ? 13 : 130;
        Prompt prompt(random, LayoutOf(MakeKvLayout(spec), index), tokens);
        ExpectSameBytes(Feed(CompressByPrepareOnGpu, {}, spec, index, prompt, tokens, {1}, 0, 1),
                        Feed(CompressOnGpu, {}, spec, index, prompt, tokens, {1}, 0, 1), StrCat("ratio ", ratio));
      }
    }
  }
}

// Padding rows (engine/ranks/idle_rows.h) all have position 0 of one sequence without pages. Enough of them to complete
// a row do not emit one.
TEST(CudaCompress, IdleRowsMakeNoRow) {
  DSV4_GPU_OR_SKIP();
  Random random(12);
  constexpr int64_t kRows = 7;
  const KvSpec spec = FullKvSpec({4});
  for (const bool index : Indexes(4)) {
    CacheFixture cache(spec, {{.cached = 0, .tokens = kRows}});
    const CompressorLayout& layout = LayoutOf(cache.layout(), index);
    Prompt prompt(random, layout, kRows);
    GuardBuffer<float> values({kRows, prompt.width}, prompt.values), gates({kRows, prompt.width}, prompt.gates);
    const std::vector<int64_t> positions(kRows, 0);
    CacheView view = cache.View(0);
    view.positions = positions.data();
    CompressByPrepareOnGpu({}, {.values = values.tensor(),
                                .gates = gates.tensor(),
                                .slot_bias = prompt.slot_bias.tensor(),
                                .norm = prompt.norm.tensor(),
                                .norm_eps = 1e-6f,
                                .frequencies = prompt.frequencies.tensor(),
                                .cache = view,
                                .layout = &layout});
    const RowSlot slot = EmittedRow(layout, cache.sequences()[0], 0);
    const uint8_t* data = slot.rows.data(slot.index);
    EXPECT_TRUE(std::all_of(data, data + layout.row.data_bytes, [](uint8_t b) { return b == 0xFF; })) << index;
  }
}

}  // namespace
}  // namespace dsv4::test
