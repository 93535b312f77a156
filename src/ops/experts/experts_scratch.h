// The layout of ExecContext::scratch for the GPU kernels of experts, by number of rows. Host code. The kernels take
// their offsets from here, so a lack of memory is known before a launch.
#pragma once

#include "ops/experts/experts.h"

namespace dsv4::experts {

inline constexpr int64_t kSortedPairs = 1024;  // pairs per sorting block
inline constexpr int64_t kWidestTile = 256;    // tokens of a tile of ExpertsKernel if an input is one term
// F32UpKernel and F32DownKernel: the most blocks along the grid's second axis
inline constexpr int64_t kMaxF32Pairs = 65535;
inline constexpr int64_t kChunkBytes = 16, kTileEntryBytes = 12, kTotalsBytes = 32;  // sizes of the kernels' structs

// Offsets in the scratch memory; `bytes` is the total size.
struct GroupedScratch {  // kernels of decode rows
  int64_t hidden_planes = 0, plan = 0, chunks = 0, pairs = 0, x_planes = 0, bytes = 0;
};
struct SortedScratch {  // kernels of prompts
  int64_t totals = 0, histogram = 0, tiles = 0, pair = 0, row = 0, weight = 0, bytes = 0;
  // -1: the sorted x is in ExpertsArgs::outputs, if that is large enough (it is written only after x has been read),
  // and h is in ExpertsArgs::hidden.
  int64_t x = -1, hidden = -1;
  int64_t most_rows = 0;  // the larger number of rows of both
};
GroupedScratch GroupedScratchOf(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);
SortedScratch SortedScratchOf(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);

// The call for rows [begin, begin + count) of x only, with the same outputs. It reads x instead of its blocks, because
// the order of the blocks depends on the number of all rows. The values are the same.
ExpertsArgs PartOf(const ExpertsArgs& args, int64_t begin, int64_t count);

}  // namespace dsv4::experts
