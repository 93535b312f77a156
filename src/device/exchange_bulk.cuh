// What travels as arrays: many rows at once, where a tag beside every value would double the bytes.
//
// The sender stores a chunk into the receiver's memory, then a fence, then the chunk's flag, the tag; the receiver
// polls the flag, then reads the chunk. Tag, buffers and why nobody waits for ever are exchange.cuh's; so that a poll
// stands behind every push, as its proof needs, an empty array has a flag, too.
#pragma once

#include "device/exchange.cuh"

namespace dsv4 {

inline constexpr int kBulkThreads = 512;

// Which elements of an array are which rank's: [begin[r], begin[r + 1]); every begin is a multiple of 4.
struct BulkShares {
  int64_t begin[kMaxRanks + 1];
  // ShareOf(n, r, count, grain) rows of `width` each.
  static BulkShares Of(int64_t n, int count, int64_t grain, int64_t width) {
    BulkShares shares = {};
    for (int r = 0; r < count; ++r) shares.begin[r + 1] = ShareOf(n, r, count, grain).end * width;
    return shares;
  }
  __host__ __device__ int64_t size(int r) const { return begin[r + 1] - begin[r]; }
};

// Elements [begin, begin + size) of it: what one exchange carries of a share.
struct BulkPiece {
  int64_t begin, size;
};
__device__ __forceinline__ BulkPiece PieceOf(const BulkShares& shares, int r, int64_t done, int64_t room) {
  const int64_t left = shares.size(r) - done;
  return {shares.begin[r] + done, left < 0 ? 0 : left < room ? left : room};
}
__device__ __forceinline__ int64_t ChunksOf(const BulkPiece& piece) {
  return piece.size == 0 ? 1 : (piece.size + kBulkChunk - 1) / kBulkChunk;
}

__device__ __forceinline__ uint8_t* BulkRow(const ExchangeMemory& m, int owner, uint32_t tag, int count, int sender) {
  return m.bulk[static_cast<size_t>(owner)] +
         (static_cast<int64_t>(tag & 1) * count + sender) * BulkRowBytes(m.bulk_floats);
}
__device__ __forceinline__ uint64_t* BulkFlag(const ExchangeMemory& m, uint8_t* row, int64_t chunk) {
  return reinterpret_cast<uint64_t*>(row + m.bulk_floats * 4) + chunk;
}

// The block sends chunk `chunk` of x, a piece of `size` floats, to `peer`.
__device__ __forceinline__ void SendChunk(const ExchangeMemory& m, int rank, int peer, int count, uint32_t tag,
                                          const float* x, int64_t size, int64_t chunk) {
  uint8_t* row = BulkRow(m, peer, tag, count, rank);
  float* to = reinterpret_cast<float*>(row);
  const int64_t end = min(size, (chunk + 1) * kBulkChunk);
  float4 v[kBulkChunk / 4 / kBulkThreads];
#pragma unroll
  for (int j = 0; j < kBulkChunk / 4 / kBulkThreads; ++j) {
    const int64_t i = chunk * kBulkChunk + (j * kBulkThreads + static_cast<int>(threadIdx.x)) * 4;
    if (i < end) v[j] = __ldcs(reinterpret_cast<const float4*>(x + i));
  }
#pragma unroll
  for (int j = 0; j < kBulkChunk / 4 / kBulkThreads; ++j) {
    const int64_t i = chunk * kBulkChunk + (j * kBulkThreads + static_cast<int>(threadIdx.x)) * 4;
    if (i < end) *reinterpret_cast<float4*>(to + i) = v[j];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(BulkFlag(m, row, chunk)), "l"(static_cast<uint64_t>(tag))
                 : "memory");
  }
}

// Waits until `sender`'s chunk is there; by one thread.
__device__ __forceinline__ void AwaitChunk(const ExchangeMemory& m, int rank, int sender, int count, uint32_t tag,
                                           int64_t site, int64_t chunk) {
  const uint64_t* flag = BulkFlag(m, BulkRow(m, rank, tag, count, sender), chunk);
  PollLimit limit;
  for (;;) {
    uint64_t got;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(got) : "l"(flag) : "memory");
    if (got == tag) return;
    bool expired = false;
    const bool reached = limit.Reached(m, expired);
    if (expired) ReportLate(m, rank, sender, site, tag);
    if (reached) return;
  }
}

// Every rank's y has a part of each element: y's elements of this rank's share become the sums, in RankTree's order;
// the others stay parts.
template <int Count>
__global__ void __launch_bounds__(kBulkThreads)
    ScatterSumKernel(ExchangeMemory m, int rank, float* y, BulkShares shares, int64_t done, int64_t site) {
  AllowNext();
  WaitForPrevious();
  const uint32_t tag = ExchangeTag(m, site);
  int64_t longest = 1;  // shares differ by a chunk at most
#pragma unroll
  for (int p = 0; p < Count; ++p) longest = max(longest, ChunksOf(PieceOf(shares, p, done, m.bulk_floats)));
  for (int64_t item = blockIdx.x; item < longest * (Count - 1); item += gridDim.x) {
    const int peer = (rank + 1 + static_cast<int>(item % (Count - 1))) % Count;
    const int64_t chunk = item / (Count - 1);
    const BulkPiece piece = PieceOf(shares, peer, done, m.bulk_floats);
    if (chunk < ChunksOf(piece)) SendChunk(m, rank, peer, Count, tag, y + piece.begin, piece.size, chunk);
  }
  const BulkPiece mine = PieceOf(shares, rank, done, m.bulk_floats);
  for (int64_t chunk = blockIdx.x; chunk < ChunksOf(mine); chunk += gridDim.x) {
    if (threadIdx.x < Count && static_cast<int>(threadIdx.x) != rank)
      AwaitChunk(m, rank, static_cast<int>(threadIdx.x), Count, tag, site, chunk);
    __syncthreads();
    const int64_t end = min(mine.size, (chunk + 1) * kBulkChunk);
    for (int64_t i = chunk * kBulkChunk + static_cast<int>(threadIdx.x) * 4; i < end; i += kBulkThreads * 4) {
      float4 part[Count];
#pragma unroll
      for (int p = 0; p < Count; ++p) {
        part[p] = __ldcg(reinterpret_cast<const float4*>(
            p == rank ? y + mine.begin + i : reinterpret_cast<const float*>(BulkRow(m, rank, tag, Count, p)) + i));
      }
      float4 sum;
      const auto tree = [&](float float4::*c) {
        float of[Count];
#pragma unroll
        for (int p = 0; p < Count; ++p) of[p] = part[p].*c;
        return RankTree<Count>(of);
      };
      sum.x = tree(&float4::x), sum.y = tree(&float4::y), sum.z = tree(&float4::z), sum.w = tree(&float4::w);
      *reinterpret_cast<float4*>(y + mine.begin + i) = sum;
    }
    __syncthreads();  // before the next chunk's flags are asked for
  }
}

// Every rank has made its share of y; afterwards it has all of it.
template <int Count>
__global__ void __launch_bounds__(kBulkThreads)
    GatherSharesKernel(ExchangeMemory m, int rank, float* y, BulkShares shares, int64_t done, int64_t site) {
  AllowNext();
  WaitForPrevious();
  const uint32_t tag = ExchangeTag(m, site);
  const BulkPiece mine = PieceOf(shares, rank, done, m.bulk_floats);
  for (int64_t item = blockIdx.x; item < ChunksOf(mine) * (Count - 1); item += gridDim.x) {
    const int peer = (rank + 1 + static_cast<int>(item % (Count - 1))) % Count;
    SendChunk(m, rank, peer, Count, tag, y + mine.begin, mine.size, item / (Count - 1));
  }
  for (int k = 1; k < Count; ++k) {
    const int p = (rank + k) % Count;
    const BulkPiece piece = PieceOf(shares, p, done, m.bulk_floats);
    const float* from = reinterpret_cast<const float*>(BulkRow(m, rank, tag, Count, p));
    for (int64_t chunk = blockIdx.x; chunk < ChunksOf(piece); chunk += gridDim.x) {
      if (threadIdx.x == 0) AwaitChunk(m, rank, p, Count, tag, site, chunk);
      __syncthreads();
      const int64_t end = min(piece.size, (chunk + 1) * kBulkChunk);
      for (int64_t i = chunk * kBulkChunk + static_cast<int>(threadIdx.x) * 4; i < end; i += kBulkThreads * 4) {
        *reinterpret_cast<float4*>(y + piece.begin + i) = __ldcg(reinterpret_cast<const float4*>(from + i));
      }
      __syncthreads();
    }
  }
}

// Kernels' one signature: they differ in what they do with a piece.
using BulkKernel = void (*)(ExchangeMemory, int, float*, BulkShares, int64_t done, int64_t site);

// A launch for each of `pieces`, BulkExchanges(memory, the longest share): exchanges `site` and those behind it.
inline void ExchangeInBulk(const ExecContext& ctx, BulkKernel kernel, float* y, const BulkShares& shares, int64_t site,
                           int64_t pieces) {
  const RankView& ranks = *ctx.ranks;
  for (int64_t k = 0; k < pieces; ++k) {
    Launch(ctx, kernel, dim3(static_cast<unsigned>(ctx.gpu.multiprocessors)), dim3(kBulkThreads), 0, ranks.memory,
           ranks.rank, y, shares, k * ranks.memory.bulk_floats, site + k);
  }
}

}  // namespace dsv4
