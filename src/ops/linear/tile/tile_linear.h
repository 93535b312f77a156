// Products of packed weights with up to a few dozen tokens on the GPU: LinearKernels::kTiles. Weights are
// streamed once by all multiprocessors through rings in shared memory and multiplied on tensor cores (tile_mma.cuh).
//
// One launch takes up to eight matrices that share x. An item is 16 rows of one of them. K is cut into Q segments, a
// function of the shapes alone, and their sums are added as a balanced tree. Who sums them may depend on T without a
// change of bits: with few tokens the warps of one block (all Q), with more the blocks of a cluster (S slices of Q / S
// segments), so that a block reads and converts its slice of x only. Matrices with many rows are not cut: a warp sums
// whole rows.
#pragma once

#include <span>

#include "device/exec_context.h"
#include "device/gpu_limits.h"
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
inline constexpr int kWarps = 16, kThreads = 32 * kWarps;
// A warp's chunks in flight, at most: 4 FP4 tiles, 2 FP8 or 1 BF16.
inline constexpr int kSlots = 3, kSlotBytes = 4 * 576;
inline constexpr int kMaxClusters = 256;
inline constexpr int kFewTokens = 4;  // whose two numbers fill the product's eight columns
// How x enters the tensor cores: as two BF16 numbers whose sum is within 2^-17 of it, or as three whose sum it is.
inline constexpr int kPair = 2, kExact = 3;
// Shared memory that a launch may ask for: the kernels declare up to kOwnShared themselves.
inline constexpr size_t kOwnShared = 1024, kMostShared = kSharedMemoryOfABlock - kOwnShared;

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
// Those are summed in 2^this slices, by the blocks of a cluster; `few`: by the kernel of few tokens.
int LogSlices(const ExecContext& ctx, int64_t tile_cols, int64_t items, int64_t num_tokens, bool few);

// Shared memory of a launch whose warps have rings of so many slots; numbers: that an input is; max_items: of a range.
struct BlockShape {
  int64_t tile_cols, max_items;
  int log_segments, log_slices;
};
constexpr int StrideOfSums(int items) { return 16 * items + 4; }
size_t SharedBytes(const BlockShape& block, int64_t num_tokens, int numbers, int slots);

// Whether a block of OneTokenKernel that has rings of so many slots has room for so many tokens, and no more rows than
// threads where K is cut.
bool OneTokenFits(const BlockShape& block, int64_t num_tokens, int slots);

// Whether OneTokenKernel, and not TileLinearKernel, takes so many tokens' product of these matrices, whose x begins
// 16-byte aligned.
bool OneTokenTakes(const ExecContext& ctx, int64_t num_tokens, std::span<const QuantTensor> matrices, int64_t groups);

// Whether few tokens' product of this matrix alone is one whose rows a block finishes together and can send: K cut into
// eight segments of whole chunks, and room for all x and the segments' sums.
bool Pushes(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w);
}  // namespace tile_linear

// x: f32 [T, groups * K]. With `norm` [K] its rows are RMS-normalised and multiplied by it first (rms_norm.h); one
// group then.
void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count,
                const float* norm = nullptr, float norm_eps = 0);

}  // namespace dsv4
