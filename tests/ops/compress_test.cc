#include "ops/compress/compress.h"

#include <cmath>

#include "ops/kernels.h"
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

using CompressFn = void (*)(const ExecContext&, const CompressArgs&);

// Feeds tokens [0, num_tokens) of `prompt` to sequence 0 of a fresh cache in steps of the given sizes, repeated; the
// cache's bytes are the result.
struct Compressed {
  std::vector<uint8_t> pages;
  std::vector<float> state;  // rows of the last tokens, in order of position
};
Compressed Feed(const CompressFn run, const ExecContext& ctx, const KvSpec& spec, bool index, Prompt& prompt,
                int64_t num_tokens, const std::vector<int64_t>& sizes, int64_t first_position = 0) {
  CacheFixture cache(spec, {{.cached = first_position, .tokens = 0}});
  const CompressorLayout& layout = index ? cache.layout().layers[0].index : cache.layout().layers[0].main;
  size_t next = 0;
  for (int64_t done = 0; done < num_tokens;) {
    const int64_t t = std::min(sizes[next++ % sizes.size()], num_tokens - done);
    cache.Advance({t});
    const size_t begin = static_cast<size_t>(done * prompt.width),
                 end = static_cast<size_t>((done + t) * prompt.width);
    GuardBuffer<float> values({t, prompt.width}, {prompt.values.begin() + static_cast<ptrdiff_t>(begin),
                                                  prompt.values.begin() + static_cast<ptrdiff_t>(end)});
    GuardBuffer<float> gates({t, prompt.width}, {prompt.gates.begin() + static_cast<ptrdiff_t>(begin),
                                                 prompt.gates.begin() + static_cast<ptrdiff_t>(end)});
    run(ctx, {.values = values.tensor(),
              .gates = gates.tensor(),
              .slot_bias = prompt.slot_bias.tensor(),
              .norm = prompt.norm.tensor(),
              .norm_eps = 1e-6f,
              .frequencies = prompt.frequencies.tensor(),
              .hadamard = index,
              .cache = cache.View(0),
              .layout = &layout});
    done += t;
  }
  Compressed out;
  const SequenceView& seq = cache.sequences()[0];
  const int64_t end = first_position + num_tokens;
  for (int64_t row = first_position / layout.ratio; row < end / layout.ratio; ++row) {
    const RowSlot slot = EmittedRow(layout, seq, row);
    const uint8_t* data = slot.rows.data(slot.index);
    const uint8_t* scale = slot.rows.scale(slot.index);
    out.pages.insert(out.pages.end(), data, data + layout.row.data_bytes);
    out.pages.insert(out.pages.end(), scale, scale + layout.row.scale_bytes);
  }
  for (int64_t p = std::max(first_position, end - layout.num_slots()); p < end; ++p) {
    const float* row = StateRow(layout, seq, p);
    out.state.insert(out.state.end(), row, row + 2 * prompt.width);
  }
  return out;
}

std::vector<float> AsFloats(const std::vector<uint8_t>& bytes) {
  std::vector<float> x(bytes.size() / 4);
  std::memcpy(x.data(), bytes.data(), bytes.size());
  return x;
}

// exp is good to 2 ulp and its argument to one rounding of |gate - max| <= 30; weights and products are sums of at most
// `slots` terms; so a pooled channel is off by at most (2 * 33 u + gamma_(2 slots + 6)) max |value|, and so, relative to
// the root mean square of the row and up to the norm's own few roundings, is the row. |value| <= 6, |norm| <= 6, and a
// rotation and Hadamard step add 8 roundings. A row's root mean square is above 0.05 in these data.
double Tolerance(int64_t slots) { return (Gamma(66) + Gamma(2 * slots + 6) + Gamma(16)) * 6 * 6 / 0.05; }

TEST(Compress, MatchesReference) {
  Random random(1);
  for (const int64_t ratio : {4, 128}) {
    for (const bool index : {false, true}) {
      if (index && ratio != 4) continue;
      const KvSpec spec = TinyKvSpec({ratio}, KvDtype::kF32, IndexDtype::kF32);
      const KvLayout layout = MakeKvLayout(spec);
      Prompt prompt(random, index ? layout.layers[0].index : layout.layers[0].main, 300);
      const Compressed want = Feed([](const ExecContext&, const CompressArgs& a) { Compress(Reference(), a); },
                                   {}, spec, index, prompt, 300, {300});
      ForEachKernel(kCompressKernels, [&](const auto run) {
        const Compressed got = Feed(run, TwoThreads(), spec, index, prompt, 300, {300});
        EXPECT_TRUE(Near(AsFloats(got.pages), AsFloats(want.pages), Tolerance(ratio == 4 ? 8 : 128)));
        EXPECT_TRUE(BitEqual(got.state, want.state));
      });
    }
  }
}

// However the prompt is cut, the cache holds the same bytes.
TEST(Compress, EveryChunkingGivesTheSameBytes) {
  Random random(2);
  for (const int64_t ratio : {4, 128}) {
    for (const bool index : {false, true}) {
      if (index && ratio != 4) continue;
      const KvSpec spec = TinyKvSpec({ratio});
      const KvLayout layout = MakeKvLayout(spec);
      const int64_t num_tokens = 391;
      Prompt prompt(random, index ? layout.layers[0].index : layout.layers[0].main, num_tokens);
      ForEachKernel(kCompressKernels, [&](const auto run) {
        const Compressed want = Feed(run, {}, spec, index, prompt, num_tokens, {num_tokens});
        for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
                 {1}, {2}, {3}, {4}, {5}, {7}, {127}, {128}, {129}, {1, 3, 130, 2}}) {
          for (const ExecContext& ctx : ThreadCounts()) {
            const Compressed got = Feed(run, ctx, spec, index, prompt, num_tokens, sizes);
            EXPECT_EQ(got.pages, want.pages) << sizes[0];
            EXPECT_TRUE(BitEqual(got.state, want.state)) << sizes[0];
          }
        }
      });
    }
  }
}

TEST(Compress, SequencesOfAStepDoNotMix) {
  Random random(3);
  const KvSpec spec = TinyKvSpec({4});
  const KvLayout layout = MakeKvLayout(spec);
  const int64_t t = 19;
  Prompt first(random, layout.layers[0].main, t);
  const int64_t width = first.width;
  ForEachKernel(kCompressKernels, [&](const auto run) {
    const Compressed want = Feed(run, {}, spec, false, first, t, {t});
    CacheFixture cache(spec,
                       {{.cached = 0, .tokens = 5}, {.cached = 0, .tokens = 0}, {.cached = 0, .tokens = t}});
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
    std::vector<uint8_t> pages;
    for (int64_t row = 0; row < t / 4; ++row) {
      const RowSlot slot = EmittedRow(cache.layout().layers[0].main, cache.sequences()[2], row);
      const RowFormat& f = slot.rows.format;
      pages.insert(pages.end(), slot.rows.data(slot.index), slot.rows.data(slot.index) + f.data_bytes);
      pages.insert(pages.end(), slot.rows.scale(slot.index), slot.rows.scale(slot.index) + f.scale_bytes);
    }
    EXPECT_EQ(pages, want.pages);
  });
}

// Near the end of a million-token context: positions, rows and pages stay exact.
TEST(Compress, LargePositions) {
  Random random(4);
  const KvSpec spec = TinyKvSpec({128}, KvDtype::kF32);
  const KvLayout layout = MakeKvLayout(spec);
  const int64_t first_position = 1'048'576 - 256;
  Prompt prompt(random, layout.layers[0].main, 256);
  const auto reference = [](const ExecContext&, const CompressArgs& a) { Compress(Reference(), a); };
  const Compressed want = Feed(reference, {}, spec, false, prompt, 256, {256}, first_position);
  ForEachKernel(kCompressKernels, [&](const auto run) {
    const Compressed got = Feed(run, TwoThreads(), spec, false, prompt, 256, {100}, first_position);
    EXPECT_TRUE(Near(AsFloats(got.pages), AsFloats(want.pages), Tolerance(128)));
  });
}

}  // namespace
}  // namespace dsv4::test
