// Products of packed weights with up to a few dozen tokens on the GPU: LinearKernels::kTiles. All multiprocessors
// together read the weights once, through rings in shared memory, and multiply on tensor cores (tile_mma.cuh).
//
// One launch computes up to eight matrices that share x. An item is 16 rows of one of them. K is divided into Q
// segments, a function of the shapes alone, and the segments' sums are added as a balanced tree. Which threads add them
// may depend on T without a change of bits. With few tokens it is the warps of one block (all Q segments). With more
// tokens it is the blocks of a cluster (S slices of Q / S segments), so that a block reads and converts only its slice
// of x. For matrices with many rows K is not divided: a warp sums whole rows.
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
  int64_t groups = 1;           // more than one only for the only matrix; see linear.h
  int64_t push_site = kNoSite;  // the only matrix; see linear_parts.h
};

inline constexpr int kMaxTileLinearMatrices = 8;

namespace tile_linear {
inline constexpr int kWarps = 16, kThreads = 32 * kWarps;
// The largest number of a warp's chunks in flight: 4 FP4 tiles, 2 FP8 or 1 BF16.
inline constexpr int kSlots = 3, kSlotBytes = 4 * 576;
inline constexpr int kMaxClusters = 256;
inline constexpr int kFewTokens = 4;  // their two terms fill the product's eight columns
// The terms of x for the tensor cores: two BF16 numbers whose sum is within 2^-17 of x, or three whose sum is x.
inline constexpr int kPair = 2, kExact = 3;
// The dynamic shared memory of a launch, at most; the kernels declare up to kOwnShared themselves.
inline constexpr size_t kOwnShared = 1024, kMostShared = kSharedMemoryOfABlock - kOwnShared;

// Whether K is not divided: every warp has its own row tiles.
inline bool IsDirect(const ExecContext& ctx, int64_t tile_cols, int64_t items) {
  return items >= 8 * ctx.gpu.multiprocessors && tile_cols <= 128;
}
// The number of row tiles of a matrix. If groups do not begin at row tiles, a tile belongs to two groups.
inline int64_t ItemsOf(const QuantTensor& w, int64_t groups) {
  const int64_t rows = w.rows / groups;
  return groups * (CeilDiv(rows, 16) + (groups > 1 && rows % 16 != 0 ? 1 : 0));
}
// K has 2^this segments; `items` counts the items of all matrices.
inline int LogSegments(const ExecContext& ctx, int64_t tile_cols, int64_t items) {
  int log_segments = 0;
  while (!IsDirect(ctx, tile_cols, items) && log_segments < 3 && tile_cols >> (log_segments + 1) >= 1) ++log_segments;
  return log_segments;
}
// The blocks of a cluster sum the segments in 2^this slices. `few`: the kernel of few tokens does.
int LogSlices(const ExecContext& ctx, int64_t tile_cols, int64_t items, int64_t num_tokens, bool few);

// The shared memory of a launch. numbers: terms of an input; slots: slots of a warp's ring; max_items: items of a
// range.
struct BlockShape {
  int64_t tile_cols, max_items;
  int log_segments, log_slices;
};
constexpr int StrideOfSums(int items) { return 16 * items + 4; }
size_t SharedBytes(const BlockShape& block, int64_t num_tokens, int numbers, int slots);

// Whether a block of OneTokenKernel with rings of `slots` slots has room for `num_tokens` tokens and, if K is divided,
// has no more rows than threads.
bool OneTokenFits(const BlockShape& block, int64_t num_tokens, int slots);

// Whether OneTokenKernel, and not TileLinearKernel, computes the product of `num_tokens` tokens with these matrices. x
// is 16-byte aligned.
bool OneTokenTakes(const ExecContext& ctx, int64_t num_tokens, std::span<const QuantTensor> matrices, int64_t groups);

// Whether a block finishes whole rows of this matrix's product with few tokens and so can send them. K is divided into
// eight segments of whole chunks, and there is room for all x and the segments' sums.
bool Pushes(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w);
}  // namespace tile_linear

// x: f32 [T, groups * K]. With `norm` [K] its rows are first RMS-normalised and multiplied by `norm` (rms_norm.h); then
// there is one group.
void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count,
                const float* norm = nullptr, float norm_eps = 0);

}  // namespace dsv4
