// Which kernels multiply decode rows by their experts' matrices: host code, for the launches and for what a plan
// prints. No sum's order depends on it.
#pragma once

#include <string>

#include "device/gpu_limits.h"
#include "ops/experts/experts.h"
#include "ops/weight_formats/tile_formats.h"

namespace dsv4::experts {

inline constexpr int kWarps = 8, kTeamThreads = kWarps * 32;  // of a team

// ExpertOneKernel: row pairs of a team, at most, and tiles of a row, a warp's; an even number.
inline constexpr int kOneItems = 8, kOneMaxTiles = 14;
// Row pairs a multiprocessor, up to which two teams in a block are the faster ones.
inline constexpr int64_t kTwoTeamItems = 16;

// ExpertFewKernel; eight tokens take as long by ExpertGemmKernel (bench/notes/decode-drafts.md).
inline constexpr int kFewTokens = 6, kFewPairs = 64;
inline constexpr int kFewMembers = 4, kFewChunkBytes = 32;  // of a chunk: its pairs, at most; its struct
inline constexpr int kFewSumFloats = kWarps * 32;           // of a slot: 32 rows of each warp
inline constexpr int kFewOwnShared = 1024;                  // what the kernel declares itself, at most
// A block's dynamic memory, which ends with chunks and inputs. kTiles: tiles of each stream in a stage of a ring.
template <int kTiles>
struct FewPlaces {
  static constexpr int kStreamBytes = kTiles * static_cast<int>(TileBytes(WeightFormat::kNvfp4)),
                       kStageBytes = 2 * kStreamBytes, kRingBytes = 2 * kStageBytes;  // of a warp
  static constexpr int kSums = 2 * kWarps * kRingBytes, kZeros = kSums + 2 * kWarps * kFewSumFloats * 4,
                       kZeroBytes = kTiles * 128 + 32, kChunks = kZeros + kZeroBytes;
};
template <int kTiles>
constexpr int64_t FewSharedBytes(bool up, int64_t k, int64_t tokens, int64_t slots) {
  const int64_t inputs = up ? tokens * 4 * k : 2 * kWarps * kFewMembers * (4 * k / kWarps);
  return FewPlaces<kTiles>::kChunks + tokens * slots * kFewChunkBytes + inputs;
}
// Of a product [n, k]; both must fit.
template <int kTiles>
constexpr bool FewTokensFit(bool up, int64_t k, int64_t n, int64_t tokens, int64_t slots) {
  return k % (kWarps * 64 * kTiles) == 0 && n % 64 == 0 &&
         FewSharedBytes<kTiles>(up, k, tokens, slots) <= static_cast<int64_t>(kSharedMemoryOfABlock) - kFewOwnShared;
}

// ExpertManyKernel: segments of a block, at most; tokens of a chunk.
inline constexpr int kManySegments = 24, kManyTeams = 2, kManyTokens = 4, kManyChunk = kManyTeams * kManyTokens;
inline constexpr int ManyTiles(int64_t k) { return static_cast<int>(k / (64 * kWarps)); }

// What a call takes, and how its rows become the products' inputs.
struct DecodeForm {
  bool round_x, round_hidden;
  bool hidden_f32;  // between the launches: where it is rounded or multiplied in float32
  bool direct;      // one token without a plan
  bool few;         // a few tokens, whose plan the products' blocks make
  bool many;        // ExpertManyKernel, else ExpertGemmKernel
  bool wide;        // of that chunks of two blocks of columns
};
DecodeForm DecodeFormOf(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows, bool x_is_aligned);
// Whether ExpertOneKernel takes a product [n, k] of one token that has no plan, and so many slots.
bool OneTokenFits(const ExecContext& ctx, bool up, int64_t k, int64_t n, int64_t slots);

// The kernels of both products, of x that is aligned: one name, or two.
std::string DecodeKernels(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);

}  // namespace dsv4::experts
