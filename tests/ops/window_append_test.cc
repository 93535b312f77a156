#include "ops/window_append/window_append.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void WindowAppendOnGpu(const ExecContext&, const WindowAppendArgs& a) {
  Mirror gpu;
  WindowAppend(gpu.ctx(), {.kv = gpu.In(a.kv), .cache = gpu.Cache(a.cache)});
  gpu.Finish();
}

std::vector<uint8_t> FixedBytes(const CacheFixture& cache, size_t sequence) {
  const uint8_t* fixed = cache.sequences()[sequence].fixed;
  return {fixed, fixed + cache.layout().fixed_bytes};
}

// The row of a token, as a function of sequence and position only.
std::vector<float> TokenRow(int64_t dim, uint64_t sequence, int64_t position) {
  Random random(1000 * sequence + static_cast<uint64_t>(position));
  return random.Normals(dim);
}

void Append(const Place<WindowAppendArgs>& at, CacheFixture& cache, size_t layer) {
  const int64_t dh = cache.layout().layers[layer].window_row.dim, t = cache.num_tokens();
  GuardBuffer<float> kv(Shape{t, dh});
  const CacheView view = cache.View(layer);
  for (int64_t i = 0; i < t; ++i) {
    const std::vector<float> row = TokenRow(dh, static_cast<uint64_t>(view.sequence_of[i]), view.positions[i]);
    std::copy(row.begin(), row.end(), kv.row(i).begin());
  }
  at.run({.kv = kv.tensor(), .cache = view});
}

DSV4_DEVICE_TEST(WindowAppend, TheRingHoldsTheLastRowsOfEverySequence) {
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
    for (const auto& c : Places(on, WindowAppend, WindowAppendOnGpu)) {
      // Chunks shorter, as long as, longer and much longer than the window of 128; wrapping rings; no tokens at all.
      CacheFixture cache(TinyKvSpec({0, 4, 0}, dtype),
                         {{0, 1}, {0, 300}, {127, 2}, {500, 128}, {130, 0}, {1000, 129}, {0, 128}, {255, 1}});
      const size_t layer = 2;  // neighbours on both sides must not change
      std::vector<std::vector<uint8_t>> before;
      for (size_t s = 0; s < cache.sequences().size(); ++s) before.push_back(FixedBytes(cache, s));
      Append(c, cache, layer);
      const LayerLayout& l = cache.layout().layers[layer];
      for (size_t s = 0; s < cache.sequences().size(); ++s) {
        const SequenceView& seq = cache.sequences()[s];
        const int64_t end = seq.start + seq.end - seq.begin;
        const RowArray ring = cache.View(layer).window_rows(seq);
        for (int64_t p = std::max(seq.start, end - l.window_slots); p < end; ++p) {
          std::vector<float> want = TokenRow(l.window_row.dim, s, p), got(want.size());
          RoundRow(l.window_row, want.data());
          ring.Read(p % l.window_slots, got.data());
          ASSERT_TRUE(BitEqual(got, want)) << c.name << ", sequence " << s << ", position " << p;
          // Restores the previous bytes, so that the comparison below covers everything else.
          std::memset(ring.data(p % l.window_slots), 0xFF, static_cast<size_t>(l.window_row.data_bytes));
          std::memset(ring.scale(p % l.window_slots), 0xFF, static_cast<size_t>(l.window_row.scale_bytes));
        }
        EXPECT_EQ(FixedBytes(cache, s), before[s]) << c.name << ", sequence " << s;
      }
    }
  }
}

DSV4_DEVICE_TEST(WindowAppend, TheRingDoesNotDependOnHowThePromptWasCut) {
  const int64_t total = 391;
  const Place<WindowAppendArgs> at = Places(on, WindowAppend, WindowAppendOnGpu).back();
  CacheFixture whole(TinyKvSpec({0}), {{0, total}});
  Append(at, whole, 0);
  for (const int64_t chunk : {1, 3, 37, 127, 128, 129, 200}) {
    CacheFixture cut(TinyKvSpec({0}), {{0, std::min(chunk, total)}});
    for (int64_t done = 0;;) {
      Append(at, cut, 0);
      done += cut.num_tokens();
      if (done == total) break;
      cut.Advance({std::min(chunk, total - done)});
    }
    EXPECT_EQ(FixedBytes(cut, 0), FixedBytes(whole, 0)) << "chunks of " << chunk;
  }
}

// The whole fixed block has the same bytes as with the reference, including ring rows that were never written.
DSV4_DEVICE_TEST(WindowAppend, SameBytesAsReference) {
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
    for (const bool full : {false, true}) {
      const KvSpec spec = full ? FullKvSpec({0, 4, 0}, dtype) : TinyKvSpec({0, 4, 0}, dtype);
      const std::vector<SequenceStep> steps = {{0, 1},   {0, 300},    {127, 2}, {500, 128},
                                               {130, 0}, {1000, 129}, {0, 128}, {255, 1}};
      CacheFixture want(spec, steps);
      Random random(7);
      const int64_t t = want.num_tokens(), dh = spec.head_dim;
      std::vector<float> rows = random.Normals(t * dh);
      const std::vector<float> hostile = random.Hostiles(40 * dh);
      std::copy(hostile.begin(), hostile.end(), rows.begin());
      GuardBuffer<float> kv({t, dh}, rows);
      WindowAppend({.reference_ops = true}, {.kv = kv.tensor(), .cache = want.View(2)});
      for (const auto& c : Places(on, WindowAppend, WindowAppendOnGpu)) {
        CacheFixture got(spec, steps);
        c.run({.kv = kv.tensor(), .cache = got.View(2)});
        for (size_t s = 0; s < steps.size(); ++s)
          EXPECT_EQ(FixedBytes(got, s), FixedBytes(want, s)) << c.name << " " << s;
      }
    }
  }
}

TEST(WindowAppendDeathTest, RefusesAnotherNumberOfRows) {
  CacheFixture cache(TinyKvSpec({0}), {{0, 2}});
  GuardBuffer<float> kv(Shape{3, 96});
  EXPECT_DEATH(WindowAppend({}, {.kv = kv.tensor(), .cache = cache.View(0)}), "3 vs 2");
}

}  // namespace
}  // namespace dsv4::test
