#include "ops/experts/experts_scratch.h"

#include <algorithm>

namespace dsv4 {

namespace experts {

namespace {

// Returns the offset of `bytes` bytes after the used ones. Offsets are 256-byte aligned.
int64_t PlaceIn(int64_t* used, int64_t bytes) {
  const int64_t at = *used;
  *used += CeilDiv(bytes, 256) * 256;
  return at;
}

// Bytes of a row of BF16 or FP16 numbers, padded to whole tiles.
int64_t RowBytes(int64_t cols) { return CeilDiv(cols, 64) * 128; }

// Whether a caller's tensor of float32 rows has `bytes` bytes, and every part of it is 16-byte aligned.
bool HoldsParts(int64_t rows, int64_t floats_of_token, int64_t cols, int64_t bytes) {
  return rows * cols * 4 >= bytes && floats_of_token % 4 == 0;
}

// Rows [begin, begin + count).
Tensor RowsOf(const Tensor& t, int64_t begin, int64_t count) {
  if (!t) return t;
  const int64_t row_bytes = t.num_bytes() / t.dim(0);
  return {static_cast<uint8_t*>(t.data) + begin * row_bytes, t.dtype, {count, t.dim(1)}};
}

}  // namespace

ExpertsArgs PartOf(const ExpertsArgs& a, int64_t begin, int64_t count) {
  const int64_t slots = a.experts.dim(1);
  ExpertsArgs part = a;
  for (Tensor* t : {&part.x, &part.experts, &part.weights, &part.rounded_x, &part.shared, &part.y})
    *t = RowsOf(*t, begin, count);
  for (Tensor* t : {&part.hidden, &part.outputs}) *t = RowsOf(*t, begin * slots, count * slots);
  part.x_blocks = nullptr;
  return part;
}

GroupedScratch GroupedScratchOf(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows) {
  const int64_t planes = ctx.f32_inputs ? 3 : 2, block_tokens = planes == 2 ? 4 : 8, pairs = rows * shape.slots;
  const int64_t most_chunks = std::min(pairs, shape.num_experts + pairs / block_tokens);
  GroupedScratch s;
  s.hidden_planes = PlaceIn(&s.bytes, planes * pairs * RowBytes(shape.first.gate.rows));
  s.plan = PlaceIn(&s.bytes, 3 * 4);
  s.chunks = PlaceIn(&s.bytes, most_chunks * kChunkBytes);
  s.pairs = PlaceIn(&s.bytes, pairs * 4);
  s.x_planes = PlaceIn(&s.bytes, planes * rows * RowBytes(shape.first.gate.cols));
  return s;
}

SortedScratch SortedScratchOf(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows) {
  const int64_t d = shape.first.gate.cols, f = shape.first.gate.rows, pairs = rows * shape.slots;
  const int64_t numbers = GpuExpertsInputNumbers(ctx, shape.first), named = std::min(shape.num_experts, pairs);
  SortedScratch s;
  s.most_rows = (pairs + 7 * named + 7) / 8 * 8;
  s.totals = PlaceIn(&s.bytes, kMaxFetchGroups * kTotalsBytes);
  s.histogram = PlaceIn(&s.bytes, CeilDiv(pairs, kSortedPairs) * shape.num_experts * 4);
  s.tiles = PlaceIn(&s.bytes, (named + pairs / (kWidestTile / numbers)) * kTileEntryBytes);
  s.pair = PlaceIn(&s.bytes, s.most_rows * 4);
  s.row = PlaceIn(&s.bytes, pairs * 4);
  s.weight = PlaceIn(&s.bytes, s.most_rows * 4);
  const int64_t x_bytes = s.most_rows * numbers * RowBytes(d), hidden_bytes = s.most_rows * numbers * RowBytes(f);
  if (!HoldsParts(pairs, shape.slots * d, d, x_bytes)) s.x = PlaceIn(&s.bytes, x_bytes);
  if (!HoldsParts(pairs, shape.slots * 2 * f, 2 * f, hidden_bytes)) s.hidden = PlaceIn(&s.bytes, hidden_bytes);
  return s;
}

}  // namespace experts

int64_t ExpertsScratchBytes(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows) {
  const bool prompt = !shape.with_shared && ExpertsRunAsPrompt(ctx, shape.first, shape.activation, shape.num_experts);
  return prompt ? experts::SortedScratchOf(ctx, shape, rows).bytes : experts::GroupedScratchOf(ctx, shape, rows).bytes;
}

int64_t ExpertsRowsAtOnce(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows) {
  const bool f32 = shape.first.gate.format == WeightFormat::kF32 || shape.first.down.format == WeightFormat::kF32;
  const int64_t most = f32 ? experts::kMaxF32Pairs / shape.slots : kMaxTokensOnGpu;
  for (int64_t parts = std::max<int64_t>(CeilDiv(rows, most), 1); parts <= rows; ++parts) {
    const int64_t part = CeilDiv(rows, parts);
    if (ExpertsScratchBytes(ctx, shape, part) <= ctx.scratch.bytes) return part;
  }
  return 0;
}

}  // namespace dsv4
