// Selects the kernels that multiply decode rows by their experts' matrices. Host code, for the launches and for the
// printed plan. The order of a sum does not depend on the selection.
#pragma once

#include <string>

#include "device/gpu_limits.h"
#include "ops/experts/experts.h"
#include "ops/weight_formats/tile_formats.h"

namespace dsv4::experts {

inline constexpr int kWarps = 8, kTeamThreads = kWarps * 32;  // of a team

// ExpertOneKernel: at most kOneItems row pairs per team, and at most kOneMaxTiles tiles of a row per warp; an even
// number.
inline constexpr int kOneItems = 8, kOneMaxTiles = 14;
// Up to this many row pairs per multiprocessor, blocks of two teams are faster.
inline constexpr int64_t kTwoTeamItems = 16;

// ExpertFewKernel. With eight tokens ExpertGemmKernel is as fast.
inline constexpr int kFewTokens = 6, kFewPairs = 64;
inline constexpr int kFewMembers = 4, kFewChunkBytes = 32;  // per chunk: pairs, at most; bytes of the struct
inline constexpr int kFewSumFloats = kWarps * 32;           // per slot: 32 rows of each warp
inline constexpr int kFewOwnShared = 1024;                  // the kernel's static shared memory, at most
// The layout of a block's dynamic shared memory, which ends with chunks and inputs. kTiles: tiles of each stream in a
// stage of a ring.
template <int kTiles>
struct FewPlaces {
  static constexpr int kStreamBytes = kTiles * static_cast<int>(TileBytes(WeightFormat::kNvfp4)),
                       kStageBytes = 2 * kStreamBytes, kRingBytes = 2 * kStageBytes;  // per warp
  static constexpr int kSums = 2 * kWarps * kRingBytes, kZeros = kSums + 2 * kWarps * kFewSumFloats * 4,
                       kZeroBytes = kTiles * 128 + 32, kChunks = kZeros + kZeroBytes;
};
template <int kTiles>
constexpr int64_t FewSharedBytes(bool up, int64_t k, int64_t tokens, int64_t slots) {
  const int64_t inputs = up ? tokens * 4 * k : 2 * kWarps * kFewMembers * (4 * k / kWarps);
  return FewPlaces<kTiles>::kChunks + tokens * slots * kFewChunkBytes + inputs;
}
// Whether a product [n, k] fits. Both products must fit.
template <int kTiles>
constexpr bool FewTokensFit(bool up, int64_t k, int64_t n, int64_t tokens, int64_t slots) {
  return k % (kWarps * 64 * kTiles) == 0 && n % 64 == 0 &&
         FewSharedBytes<kTiles>(up, k, tokens, slots) <= static_cast<int64_t>(kSharedMemoryOfABlock) - kFewOwnShared;
}

// ExpertManyKernel: at most kManySegments segments per block; tokens per chunk.
inline constexpr int kManySegments = 24, kManyTeams = 2, kManyTokens = 4, kManyChunk = kManyTeams * kManyTokens;
inline constexpr int ManyTiles(int64_t k) { return static_cast<int>(k / (64 * kWarps)); }

// The kernels of a call, and the form of the products' inputs.
struct DecodeForm {
  bool round_x, round_hidden;
  bool hidden_f32;  // h is float32 between the launches: if it is rounded or multiplied in float32
  bool direct;      // one token without a plan
  bool few;         // a few tokens; the products' blocks make the plan
  bool many;        // ExpertManyKernel, else ExpertGemmKernel
  bool wide;        // ExpertManyKernel with chunks of two blocks of columns
};
DecodeForm DecodeFormOf(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows, bool x_is_aligned);
// Whether ExpertOneKernel can compute a product [n, k] of one token without a plan, with this number of slots.
bool OneTokenFits(const ExecContext& ctx, bool up, int64_t k, int64_t n, int64_t slots);

// The names of the kernels of both products, for aligned x: one name, or two.
std::string DecodeKernels(const ExecContext& ctx, const ExpertsShape& shape, int64_t rows);

}  // namespace dsv4::experts
