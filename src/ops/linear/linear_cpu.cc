#include "ops/linear/linear.h"

#include "ops/grain.h"
#include "ops/linear/amx/tile_rows.h"
#include "ops/linear/integer/integer_rows.h"
#include "ops/linear/rows/input_rows.h"

namespace dsv4::DSV4_ISA {

namespace {

// Reduces p to n tokens that begin at `begin`; both are multiples of kTokenBlock.
template <typename Product>
void TakeTokens(Product& p, int64_t begin, int64_t n) {
  if constexpr (requires { p.first_token; }) {
    p.first_token += begin;
  } else {
    p.x += begin;
  }
  p.y += begin;
  p.num_tokens = n;
}

// Computes row tiles [begin, end), counted over all groups; a tile does not cross a group. `Product` is a type that has
// a MultiplyRows; group_stride has the unit of its x_offset.
template <typename Product>
void MultiplyTiles(int64_t groups, Product p, int64_t group_stride, int64_t begin, int64_t end) {
  const int64_t rows = p.w->rows / groups, tiles = CeilDiv(rows, Product::kRows);
  while (begin < end) {
    const int64_t g = begin / tiles, first = begin - g * tiles, last = std::min(tiles, first + end - begin);
    const int64_t n = g * rows + first * Product::kRows;
    p.x_offset = g * group_stride;
    p.y_offset = n;
    MultiplyRows(p, n, g * rows + std::min(rows, last * Product::kRows));
    begin += last - first;
  }
}

template <typename Product>
void MultiplyAll(const ExecContext& ctx, int64_t groups, const Product& p, int64_t group_stride) {
  const int64_t tiles = groups * CeilDiv(p.w->rows / groups, Product::kRows);
  const int64_t threads = ctx.pool == nullptr ? 1 : ctx.pool->num_threads();
  if (tiles < 4 * threads && p.num_tokens >= 2 * kTokenBlock) {  // few rows, many tokens
    ParallelFor(ctx.pool, CeilDiv(p.num_tokens, kTokenBlock), /*grain=*/1, [&](int64_t begin, int64_t end, int) {
      Product part = p;
      TakeTokens(part, begin * kTokenBlock, std::min(p.num_tokens, end * kTokenBlock) - begin * kTokenBlock);
      MultiplyTiles(groups, part, group_stride, 0, tiles);
    });
    return;
  }
  const int64_t grain = GrainFor(Product::kRows * p.w->cols * p.num_tokens);
  ParallelFor(ctx.pool, tiles, grain,
              [&](int64_t begin, int64_t end, int) { MultiplyTiles(groups, p, group_stride, begin, end); });
}

}  // namespace

void LinearCpu(const ExecContext& ctx, const LinearArgs& a) {
  const QuantTensor& w = a.parts.only().w;
  const int64_t num_tokens = a.x.dim(0), k_dim = w.cols, width = a.groups * k_dim;
  if (num_tokens == 0 || w.rows == 0) return;
  static thread_local std::vector<float*> outputs;
  float* y = a.parts.only().y.f32();
  outputs.resize(static_cast<size_t>(num_tokens));
  for (int64_t t = 0; t < num_tokens; ++t) outputs[static_cast<size_t>(t)] = y + t * w.rows;
  const auto row = [x = a.x.f32(), width](int64_t t) { return x + t * width; };
  if (RoundsToIntegers(a.activation, w.format)) {
    static thread_local IntegerRows inputs;
    inputs.Set(ctx.pool, num_tokens, a.groups, k_dim, a.activation, row);
    const IntegerProduct p{
        .w = &w, .activation = a.activation, .x = inputs.rows(), .y = outputs.data(), .num_tokens = num_tokens};
    return MultiplyAll(ctx, a.groups, p, inputs.group_stride());
  }
#ifdef DSV4_SIMD_AMX
  if (TakesTiles(w)) {
    static thread_local TilePanels panels;
    panels.Set(
        ctx.pool, a.groups, k_dim, OrderOf(w.format), [&](int64_t) { return num_tokens; },
        [&](int64_t g, int64_t t) { return row(t) + g * k_dim; });
    const TileProduct p{.w = &w, .x = &panels.panel(0), .y = outputs.data(), .num_tokens = num_tokens};
    return MultiplyAll(ctx, a.groups, p, /*group_stride=*/1);
  }
#endif
  static thread_local InputRows inputs;
  inputs.Set(ctx.pool, num_tokens, a.groups, k_dim, OrderOf(w.format), row);
  const RowProduct p{.w = &w, .x = inputs.rows(), .y = outputs.data(), .num_tokens = num_tokens};
  MultiplyAll(ctx, a.groups, p, inputs.group_stride());
}

}  // namespace dsv4::DSV4_ISA
