// What a GPU's kernels for experts keep in ExecContext::scratch while they run, by number of rows. Host code: the
// kernels take their places from here, so that what does not fit is known before a launch.
#pragma once

#include "ops/experts/experts.h"

namespace dsv4::experts {

inline constexpr int64_t kSortedPairs = 1024;  // of a block that sorts
inline constexpr int64_t kWidestTile = 256;    // tokens of a tile of ExpertsKernel, where an input is one number
// of F32UpKernel and F32DownKernel: the most blocks along a grid's second axis
inline constexpr int64_t kMaxF32Pairs = 65535;
inline constexpr int64_t kChunkBytes = 16, kTileEntryBytes = 12, kTotalsBytes = 32;  // of the kernels' structs

// Offsets of what has a place; `bytes`: of all together.
struct GroupedScratch {  // of the kernels of decode rows
  int64_t hidden_planes = 0, plan = 0, chunks = 0, pairs = 0, x_planes = 0, bytes = 0;
};
struct SortedScratch {  // of those of prompts
  int64_t totals = 0, histogram = 0, tiles = 0, pair = 0, row = 0, weight = 0, bytes = 0;
  // The sorted x lies in ExpertsArgs::outputs where that is large enough, which is written only after x has been read;
  // h lies in ExpertsArgs::hidden. -1: there.
  int64_t x = -1, hidden = -1;
  int64_t most_rows = 0;  // of both
};
GroupedScratch GroupedScratchOf(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);
SortedScratch SortedScratchOf(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);

// The call of rows [begin, begin + count) of x alone, to the same places. It reads x itself, not its blocks, whose
// order follows from the number of all rows: the numbers are the same.
ExpertsArgs PartOf(const ExpertsArgs& args, int64_t begin, int64_t count);

}  // namespace dsv4::experts
