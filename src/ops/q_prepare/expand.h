// The limits of ExpandKernel (expand_cuda.cu) and ExpandPartKernel (expand_part_cuda.cu).
#pragma once

#include "ops/linear/tile/tile_linear.h"
#include "ops/q_prepare/q_prepare.h"
#include "tensor/quant_tensor.h"

namespace dsv4::q_prepare {

inline constexpr int kHead = 512, kIndexHead = 128;  // channels
inline constexpr int64_t kMaxCols = 4096, kMostTokens = tile_linear::kFewTokens;
inline constexpr int64_t kMinCutTiles = 8;       // column tiles, if K is divided into eight segments
inline constexpr int64_t kMaxFewCutCols = 2048;  // then, for several tokens: room for every segment's sums
inline constexpr WeightFormat kFormat = WeightFormat::kNvfp4;

// The division of a launch: a function of shapes and the GPU.
struct ExpandCut {
  bool along_k;    // divides K as ops/linear does, for the same bits
  bool part;       // expand_part_cuda.cu: index heads, if any, have their own blocks
  int64_t blocks;  // two per head, plus the blocks of index heads, tokens' own rows and compressors
};
inline ExpandCut CutOf(const ExecContext& ctx, const ExpandShape& s) {
  const int64_t items = (s.q_b.rows + s.index_q_b.rows) / 16;
  const bool along_k = !tile_linear::IsDirect(ctx, CeilDiv(s.q_b.cols, kTileCols64), items);
  const bool part = along_k || (s.index_heads > 0 && s.index_heads != s.heads);
  const int64_t last = (part ? s.index_heads : 0) + 1 + s.num_compress;
  return {along_k, part, 2 * s.heads + CeilDiv(last, 2) * 2};
}

}  // namespace dsv4::q_prepare
