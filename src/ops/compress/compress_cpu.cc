#include "ops/compress/compress.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/compress/emit.h"
#include "ops/simd.h"

namespace dsv4::DSV4_ISA {

namespace {

constexpr int64_t kMaxSlots = 256;  // a window, or two that overlap: 8 or 128 for the released models

// pooled[i] = sum_slots softmax_slots(gate[., i]) * value[., i] for the row that the token at `position` completes.
void Pool(const CompressArgs& a, const SequenceView& seq, int64_t position, float* pooled) {
  const CompressorLayout& c = *a.layout;
  const int64_t m = c.ratio, d = c.dim, row = position / m;
  const int64_t first = std::max<int64_t>(0, (row - (c.overlap - 1)) * m), count = position + 1 - first;
  SlotRows slots[kMaxSlots];
  for (int64_t i = 0; i < count; ++i) {
    slots[i] = RowsAt(a, seq, first + i);
    // The last window uses its last d channels (series Cb), the previous window its first d (series Ca).
    const int64_t channel = first + i < row * m ? 0 : (c.overlap - 1) * d;
    slots[i].value += channel;
    slots[i].gate += channel;
  }
  const auto pool = [&](const auto& load) {
    Vec largest = Set(-std::numeric_limits<float>::infinity());
    for (int64_t s = 0; s < count; ++s) largest = Max(load(slots[s].gate), largest);
    Vec sum = Zero(), weighted = Zero();
    for (int64_t s = 0; s < count; ++s) {
      const Vec e = Exp(Sub(load(slots[s].gate), largest));
      sum = Add(sum, e);
      weighted = Fma(e, load(slots[s].value), weighted);
    }
    return Div(weighted, sum);
  };
  const int64_t whole = d / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Store(pooled + i, pool([i](const float* p) { return Load(p + i); }));
  }
  if (whole < d) {
    const auto load = [whole, d](const float* p) { return LoadPartial(p + whole, d - whole); };
    StorePartial(pooled + whole, pool(load), d - whole);
  }
}

}  // namespace

void CompressCpu(const ExecContext& ctx, const CompressArgs& a) {
  const CompressorLayout& c = *a.layout;
  const int64_t num_tokens = a.cache.num_tokens, width = c.overlap * c.dim;
  DSV4_CHECK(c.inputs() <= kMaxSlots, "slots ", c.inputs());
  ParallelFor(ctx.pool, num_tokens, /*grain=*/std::max<int64_t>(1, 16384 / width),
              [&](int64_t begin, int64_t end, int) {
                for (int64_t t = begin; t < end; ++t) {
                  const float* bias = a.slot_bias.f32() + a.cache.positions[t] % c.ratio * width;
                  float* gate = a.gates.f32() + t * width;
                  for (int64_t i = 0; i < width; ++i) gate[i] += bias[i];
                }
              });
  static thread_local std::vector<int64_t> completing;  // tokens that complete a row
  std::vector<int64_t>& tokens = completing;
  tokens.clear();
  for (int64_t t = 0; t < num_tokens; ++t) {
    if ((a.cache.positions[t] + 1) % c.ratio == 0) tokens.push_back(t);
  }
  ParallelFor(ctx.pool, static_cast<int64_t>(tokens.size()), /*grain=*/1, [&](int64_t begin, int64_t end, int) {
    static thread_local std::vector<float> pooled;
    pooled.resize(static_cast<size_t>(c.dim));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = tokens[static_cast<size_t>(i)], position = a.cache.positions[t];
      const SequenceView& seq = a.cache.sequence(t);
      Pool(a, seq, position, pooled.data());
      EmitRow(a, seq, position / c.ratio, pooled.data());
    }
  });
  KeepState(a);
}

}  // namespace dsv4::DSV4_ISA
