#include "ops/linear/linear.h"

#include "ops/grain.h"
#include "ops/linear/input_rows.h"

namespace dsv4::DSV4_ISA {

namespace {

// Tiles of rows [begin, end), counted over all groups; a tile does not cross a group.
void MultiplyTiles(const LinearArgs& a, RowProduct p, int64_t group_stride, int64_t begin, int64_t end) {
  const int64_t rows = a.w.rows / a.groups, tiles = CeilDiv(rows, kTileRows);
  while (begin < end) {
    const int64_t g = begin / tiles, first = begin - g * tiles, last = std::min(tiles, first + end - begin);
    const int64_t n = g * rows + first * kTileRows;
    p.x_offset = g * group_stride;
    p.y_offset = n;
    MultiplyRows(p, n, g * rows + std::min(rows, last * kTileRows));
    begin += last - first;
  }
}

}  // namespace

void LinearCpu(const ExecContext& ctx, const LinearArgs& a) {
  const int64_t num_tokens = a.x.dim(0), k_dim = a.w.cols, width = a.groups * k_dim;
  if (num_tokens == 0 || a.w.rows == 0) return;
  static thread_local InputRows inputs;
  static thread_local std::vector<float*> outputs;
  const float* x = a.x.f32();
  float* y = a.y.f32();
  inputs.Set(ctx.pool, num_tokens, a.groups, k_dim, OrderOf(a.w.format), [&](int64_t t) { return x + t * width; });
  outputs.resize(static_cast<size_t>(num_tokens));
  for (int64_t t = 0; t < num_tokens; ++t) outputs[static_cast<size_t>(t)] = y + t * a.w.rows;
  RowProduct p{.w = &a.w, .x = inputs.rows(), .y = outputs.data(), .num_tokens = num_tokens};

  const int64_t group_stride = inputs.group_stride();
  const int64_t tiles = a.groups * CeilDiv(a.w.rows / a.groups, kTileRows);
  const int64_t threads = ctx.pool == nullptr ? 1 : ctx.pool->num_threads();
  if (tiles < 4 * threads && num_tokens >= 2 * kTokenBlock) {  // few rows, many tokens
    ParallelFor(ctx.pool, CeilDiv(num_tokens, kTokenBlock), /*grain=*/1, [&](int64_t begin, int64_t end, int) {
      RowProduct part = p;
      part.x += begin * kTokenBlock;
      part.y += begin * kTokenBlock;
      part.num_tokens = std::min(num_tokens, end * kTokenBlock) - begin * kTokenBlock;
      MultiplyTiles(a, part, group_stride, 0, tiles);
    });
    return;
  }
  const int64_t grain = GrainFor(kTileRows * k_dim * num_tokens);
  ParallelFor(ctx.pool, tiles, grain,
              [&](int64_t begin, int64_t end, int) { MultiplyTiles(a, p, group_stride, begin, end); });
}

}  // namespace dsv4::DSV4_ISA
