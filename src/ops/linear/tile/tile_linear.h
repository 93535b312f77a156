// Products of packed weights with up to a few dozen tokens on the GPU: LinearKernels::kTiles. Weights are
// streamed once by all multiprocessors through rings in shared memory and multiplied on tensor cores (tile_mma.cuh).
//
// One launch takes up to eight matrices that share x. An item is 16 rows of one of them. K is cut into Q segments, a
// function of the shapes alone, and their sums are added as a balanced tree. Who sums them may depend on T without a
// change of bits: with few tokens the warps of one block (all Q), with more the blocks of a cluster (S slices of Q / S
// segments), so that a block reads and converts its slice of x only. Matrices with many rows are not cut: a warp sums
// whole rows.
#pragma once

#include "device/exec_context.h"
#include "ops/linear/linear_parts.h"
#include "ops/pack_weight/pack_weight.h"
#include "ops/weight_formats/tile_formats.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

struct TileLinearMatrix {
  QuantTensor w;                // kTiles
  float* y = nullptr;           // [T, rows]
  int64_t groups = 1;           // more than one only for a matrix alone; see linear.h
  int64_t push_site = kNoSite;  // of a matrix alone; see linear_parts.h
};

inline constexpr int kMaxTileLinearMatrices = 8;

namespace tile_linear {
inline constexpr int kFewTokens = 4;  // whose two numbers fill the product's eight columns

// Whether K is not cut: every warp has row tiles of its own.
inline bool IsDirect(const ExecContext& ctx, int64_t tile_cols, int64_t items) {
  return items >= 8 * ctx.gpu.multiprocessors && tile_cols <= 128;
}
// Of a matrix: its row tiles. Where groups do not begin at row tiles, a tile belongs to two.
inline int64_t ItemsOf(const QuantTensor& w, int64_t groups) {
  const int64_t rows = w.rows / groups;
  return groups * (CeilDiv(rows, 16) + (groups > 1 && rows % 16 != 0 ? 1 : 0));
}
// The segments of K are 2^this; `items` are all matrices'.
inline int LogSegments(const ExecContext& ctx, int64_t tile_cols, int64_t items) {
  int log_segments = 0;
  while (!IsDirect(ctx, tile_cols, items) && log_segments < 3 && tile_cols >> (log_segments + 1) >= 1) ++log_segments;
  return log_segments;
}
// Whether few tokens' product of this matrix alone is one whose rows a block finishes together and can send: K cut into
// eight segments of whole chunks, and room for all x and the segments' sums.
inline bool Pushes(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w) {
  const int64_t tile_cols = w.cols / kTileCols64, items = w.rows / 16, sms = ctx.gpu.multiprocessors;
  // Of several tokens fewer items would be spread over clusters.
  const bool room = num_tokens == 1
                        ? tile_cols <= 256 && items <= 32 * sms
                        : num_tokens <= kFewTokens && tile_cols <= 64 && items <= 4 * sms && 2 * items > sms;
  return room && w.cols % kTileCols64 == 0 && tile_cols % (8 * TilesOfChunk(w.format)) == 0 && w.rows % 16 == 0 &&
         !IsDirect(ctx, tile_cols, items);
}
}  // namespace tile_linear

// x: f32 [T, groups * K]. With `norm` [K] its rows are RMS-normalised and multiplied by it first (rms_norm.h); one
// group then.
void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count,
                const float* norm = nullptr, float norm_eps = 0);

}  // namespace dsv4
