// Collectives of arrays: for many rows at once, where a tag per value would double the bytes.
//
// The sender stores a chunk into the receiver's memory, then a fence, then the chunk's flag, which is the tag. The
// receiver polls the flag, then reads the chunk. exchange.cuh describes the tag, the buffers, and why no rank waits
// without end. That proof needs a push before every poll, so an empty array also has a flag.
#pragma once

#include "device/exchange.cuh"

namespace dsv4 {

inline constexpr int kBulkThreads = 512;

// An array of which each rank has a share. Rank r's share is at `own` in its memory: `columns` runs of run(r) floats,
// contiguous. In the whole array it begins at all + begin[r], with `stride` floats from run to run. Every begin is a
// multiple of 4; with several columns every run also is. `fours`: `own` and `all` are 16-byte aligned; always true with
// several columns.
struct BulkArray {
  const float* own;
  float* all;
  int64_t begin[kMaxRanks + 1];
  int64_t stride;
  int columns;
  bool fours;
  // The shares are ShareOf(units, r, count, grain), with `unit` floats per unit.
  static BulkArray Of(const float* own, float* all, int64_t units, int count, int64_t grain, int64_t unit,
                      int64_t columns = 1) {
    BulkArray a = {.own = own,
                   .all = all,
                   .begin = {},
                   .stride = units * unit,
                   .columns = static_cast<int>(columns),
                   .fours = (reinterpret_cast<uintptr_t>(own) | reinterpret_cast<uintptr_t>(all)) % 16 == 0};
    for (int r = 0; r < count; ++r) a.begin[r + 1] = ShareOf(units, r, count, grain).end * unit;
    return a;
  }
  __host__ __device__ int64_t run(int r) const { return begin[r + 1] - begin[r]; }
  __host__ __device__ int64_t size(int r) const { return run(r) * columns; }
  __host__ __device__ int64_t chunks(int r) const { return (size(r) + kBulkChunk - 1) / kBulkChunk; }
};

inline constexpr int kMostBulkArrays = 6;

struct BulkArrays {
  int count = 0;
  BulkArray arrays[kMostBulkArrays];

  // The chunks of rank r: one array after the other, each in whole chunks.
  __host__ __device__ int64_t chunks(int r) const {
    int64_t all = 0;
    for (int i = 0; i < count; ++i) all += arrays[i].chunks(r);
    return all;
  }
};

// A chunk of rank r: elements [begin, end) of an array; empty after the last chunk.
struct BulkSpan {
  int array;
  int64_t begin, end;
};
__device__ __forceinline__ BulkSpan SpanOf(const BulkArrays& a, int r, int64_t chunk) {
  for (int i = 0; i < a.count; ++i) {
    const int64_t chunks = a.arrays[i].chunks(r);
    if (chunk < chunks) return {i, chunk * kBulkChunk, min(a.arrays[i].size(r), (chunk + 1) * kBulkChunk)};
    chunk -= chunks;
  }
  return {0, 0, 0};
}

// The number of rank r's chunks, beginning with `first`, that one collective carries. At least one: an empty chunk has
// a flag.
__device__ __forceinline__ int64_t ChunksAtOnce(const ExchangeMemory& m, const BulkArrays& a, int r, int64_t first) {
  const int64_t left = a.chunks(r) - first, room = m.bulk_floats / kBulkChunk;
  return left < 1 ? 1 : left < room ? left : room;
}

__device__ __forceinline__ uint8_t* BulkRow(const ExchangeMemory& m, int owner, uint32_t tag, int count, int sender) {
  return m.bulk[static_cast<size_t>(owner)] +
         (static_cast<int64_t>(tag & 1) * count + sender) * BulkRowBytes(m.bulk_floats);
}
__device__ __forceinline__ uint64_t* BulkFlag(const ExchangeMemory& m, uint8_t* row, int64_t chunk) {
  return reinterpret_cast<uint64_t*>(row + m.bulk_floats * 4) + chunk;
}

// Stores four elements at i, or fewer if `end` is closer. `fours`: 16-byte aligned.
__device__ __forceinline__ void StoreBulk(float* to, int64_t i, int64_t end, bool fours, const float4& v) {
  if (fours && i + 4 <= end) {
    *reinterpret_cast<float4*>(to) = v;
    return;
  }
  if (i < end) to[0] = v.x;
  if (i + 1 < end) to[1] = v.y;
  if (i + 2 < end) to[2] = v.z;
  if (i + 3 < end) to[3] = v.w;
}
__device__ __forceinline__ float4 LoadBulk(const float* from, int64_t i, int64_t end, bool fours) {
  if (fours && i + 4 <= end) return __ldcs(reinterpret_cast<const float4*>(from));
  return {i < end ? from[0] : 0.0f, i + 1 < end ? from[1] : 0.0f, i + 2 < end ? from[2] : 0.0f,
          i + 3 < end ? from[3] : 0.0f};
}

inline constexpr int kBulkFours = kBulkChunk / 4 / kBulkThreads;  // float4 values per thread and chunk

// Call after the block has stored `chunk` into `row` of another rank.
__device__ __forceinline__ void RaiseFlag(const ExchangeMemory& m, uint8_t* row, int64_t chunk, uint32_t tag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(BulkFlag(m, row, chunk)), "l"(static_cast<uint64_t>(tag))
                 : "memory");
  }
}

// The block sends elements [span.begin, span.end) of x as chunk `chunk` of this collective to `peer`.
__device__ __forceinline__ void SendChunk(const ExchangeMemory& m, int rank, int peer, int count, uint32_t tag,
                                          const float* x, bool fours, const BulkSpan& span, int64_t chunk) {
  uint8_t* row = BulkRow(m, peer, tag, count, rank);
  float* to = reinterpret_cast<float*>(row) + chunk * kBulkChunk;
  float4 v[kBulkFours];
#pragma unroll
  for (int j = 0; j < kBulkFours; ++j) {
    const int64_t i = span.begin + (j * kBulkThreads + static_cast<int>(threadIdx.x)) * 4;
    v[j] = LoadBulk(x + i, i, span.end, fours);
  }
#pragma unroll
  for (int j = 0; j < kBulkFours; ++j) {
    const int64_t i = span.begin + (j * kBulkThreads + static_cast<int>(threadIdx.x)) * 4;
    StoreBulk(to + (i - span.begin), i, span.end, /*fours=*/true, v[j]);
  }
  RaiseFlag(m, row, chunk, tag);
}

// Sums over ranks of four elements at parts[p] + i, in RankTree's order.
template <int Count>
__device__ __forceinline__ float4 TreeOfFours(const float* const (&parts)[Count], int64_t i) {
  float4 part[Count];
#pragma unroll
  for (int p = 0; p < Count; ++p) part[p] = __ldcg(reinterpret_cast<const float4*>(parts[p] + i));
  const auto tree = [&](float float4::*c) {
    float of[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p) of[p] = part[p].*c;
    return RankTree<Count>(of);
  };
  return {tree(&float4::x), tree(&float4::y), tree(&float4::z), tree(&float4::w)};
}

// The block copies rank r's elements [span.begin, span.end) of an array from `from` (16-byte aligned) into `all`.
__device__ __forceinline__ void PlaceChunk(const BulkArray& a, int r, const float* from, const BulkSpan& span) {
  float* to = a.all + a.begin[r];
  const auto run = static_cast<uint32_t>(a.run(r));
#pragma unroll
  for (int j = 0; j < kBulkFours; ++j) {
    const int64_t at = (j * kBulkThreads + static_cast<int>(threadIdx.x)) * 4, i = span.begin + at;
    if (i >= span.end) continue;
    const auto column = a.columns == 1 ? 0u : static_cast<uint32_t>(i) / run;
    StoreBulk(to + i + column * (a.stride - run), i, span.end, a.fours,
              __ldcg(reinterpret_cast<const float4*>(from + at)));
  }
}

// Waits until `sender` has raised the flag to `value`. Call by one thread. `tag` is the collective's, for the report of
// a late rank.
__device__ __forceinline__ void AwaitFlag(const ExchangeMemory& m, int rank, int sender, const uint64_t* flag,
                                          uint64_t value, uint32_t tag, int64_t site) {
  PollLimit limit;
  for (;;) {
    uint64_t got;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(got) : "l"(flag) : "memory");
    if (got == value) return;
    bool expired = false;
    const bool reached = limit.Reached(m, expired);
    if (expired) ReportLate(m, rank, sender, site, tag);
    if (reached) return;
  }
}

// Waits until the chunk of `sender` has arrived.
__device__ __forceinline__ void AwaitChunk(const ExchangeMemory& m, int rank, int sender, int count, uint32_t tag,
                                           int64_t site, int64_t chunk) {
  AwaitFlag(m, rank, sender, BulkFlag(m, BulkRow(m, rank, tag, count, sender), chunk), tag, tag, site);
}

// The block sends its part of the data for the peers. of_peer(peer) is the rank whose elements the peer gets: the peer
// itself, or this rank.
template <int Count, typename OfPeer>
__device__ __forceinline__ void SendChunks(const ExchangeMemory& m, int rank, uint32_t tag, const BulkArrays& a,
                                           int64_t first, const OfPeer& of_peer) {
  int64_t most = 1;
#pragma unroll
  for (int k = 1; k < Count; ++k) most = max(most, ChunksAtOnce(m, a, of_peer((rank + k) % Count), first));
  for (int64_t item = blockIdx.x; item < most * (Count - 1); item += gridDim.x) {
    const int peer = (rank + 1 + static_cast<int>(item % (Count - 1))) % Count, of = of_peer(peer);
    const int64_t chunk = item / (Count - 1);
    if (chunk >= ChunksAtOnce(m, a, of, first)) continue;
    const BulkSpan span = SpanOf(a, of, first + chunk);
    const BulkArray& array = a.arrays[span.array];
    SendChunk(m, rank, peer, Count, tag, of == rank ? array.own : array.all + array.begin[of], array.fours, span,
              chunk);
  }
}

// Reduce-scatter. Every rank's array, with one column, has a partial sum of each element. The elements of this rank's
// share become sums, in RankTree's order; the others stay partial sums.
template <int Count>
__global__ void __launch_bounds__(kBulkThreads)
    ScatterSumKernel(ExchangeMemory m, int rank, BulkArrays a, int64_t first, int64_t site) {
  AllowNext();
  WaitForPrevious();
  const uint32_t tag = ExchangeTag(m, site);
  SendChunks<Count>(m, rank, tag, a, first, [](int peer) { return peer; });
  float* mine = a.arrays[0].all + a.arrays[0].begin[rank];
  const int64_t chunks = ChunksAtOnce(m, a, rank, first);
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    if (threadIdx.x < Count && static_cast<int>(threadIdx.x) != rank)
      AwaitChunk(m, rank, static_cast<int>(threadIdx.x), Count, tag, site, chunk);
    __syncthreads();
    const BulkSpan span = SpanOf(a, rank, first + chunk);
    const float* parts[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      parts[p] = p == rank ? mine + span.begin
                           : reinterpret_cast<const float*>(BulkRow(m, rank, tag, Count, p)) + chunk * kBulkChunk;
    }
    for (int64_t at = static_cast<int>(threadIdx.x) * 4; at < span.end - span.begin; at += kBulkThreads * 4)
      *reinterpret_cast<float4*>(mine + span.begin + at) = TreeOfFours<Count>(parts, at);
    __syncthreads();  // before the next chunk's flags are polled
  }
}

// Copies the rank's own share into `all`, unless it is already there.
__device__ __forceinline__ void PlaceOwnChunks(const BulkArrays& a, int rank, int64_t first, int64_t chunks) {
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const BulkSpan span = SpanOf(a, rank, first + chunk);
    const BulkArray& array = a.arrays[span.array];
    if (array.columns > 1) PlaceChunk(array, rank, array.own + span.begin, span);
  }
}

// All-gather: every rank has computed its share of the arrays; afterwards it has all of them.
template <int Count>
__global__ void __launch_bounds__(kBulkThreads)
    GatherSharesKernel(ExchangeMemory m, int rank, BulkArrays a, int64_t first, int64_t site) {
  AllowNext();
  WaitForPrevious();
  const uint32_t tag = ExchangeTag(m, site);
  SendChunks<Count>(m, rank, tag, a, first, [rank](int) { return rank; });
  PlaceOwnChunks(a, rank, first, ChunksAtOnce(m, a, rank, first));
  for (int k = 1; k < Count; ++k) {
    const int p = (rank + k) % Count;
    const float* from = reinterpret_cast<const float*>(BulkRow(m, rank, tag, Count, p));
    for (int64_t chunk = blockIdx.x; chunk < ChunksAtOnce(m, a, p, first); chunk += gridDim.x) {
      if (threadIdx.x == 0) AwaitChunk(m, rank, p, Count, tag, site, chunk);
      __syncthreads();
      const BulkSpan span = SpanOf(a, p, first + chunk);
      PlaceChunk(a.arrays[span.array], p, from + chunk * kBulkChunk, span);
      __syncthreads();
    }
  }
}

// ---- Data sent early ----
//
// Copy engines carry a rank's arrays into the peers' memory while its stream continues with kernels. After the arrays
// they write a count of the early sends; the receiver polls the count when it needs the rows. The buffer is count & 1.
// It is free again: before a rank makes the second send after this one, it has polled a later collective, whose words
// its peers pushed after they had polled this send. The host counts, so early sends are not recorded.

__host__ __device__ inline float* EarlyRow(const ExchangeMemory& m, int owner, uint64_t sent, int count, int sender) {
  return reinterpret_cast<float*>(m.early[static_cast<size_t>(owner)]) +
         (static_cast<int64_t>(sent & 1) * count + sender) * m.early_floats;
}
__host__ __device__ inline uint64_t* EarlyCount(const ExchangeMemory& m, int owner, uint64_t sent, int count,
                                                int sender) {
  return reinterpret_cast<uint64_t*>(EarlyRow(m, owner, 0, count, 2 * count)) + static_cast<int64_t>(sent & 1) * count +
         sender;
}

// Queues the copies of this rank's arrays after the work in the stream. The arrays fit (early_floats).
void SendEarly(const ExecContext& ctx, const BulkArrays& arrays);
// Orders the stream after the copies. Returns the count that the peers' arrays come with.
uint64_t EndEarly(const ExecContext& ctx);

// Every rank has sent its share of the arrays early; afterwards it has all of them.
template <int Count>
__global__ void __launch_bounds__(kBulkThreads)
    TakeEarlyKernel(ExchangeMemory m, int rank, BulkArrays a, uint64_t sent, int64_t site) {
  AllowNext();
  WaitForPrevious();
  PlaceOwnChunks(a, rank, 0, a.chunks(rank));
  for (int k = 1; k < Count; ++k) {
    const int p = (rank + k) % Count;
    if (threadIdx.x == 0) AwaitFlag(m, rank, p, EarlyCount(m, rank, sent, Count, p), sent, ExchangeTag(m, site), site);
    __syncthreads();
    for (int64_t chunk = blockIdx.x; chunk < a.chunks(p); chunk += gridDim.x) {
      const BulkSpan span = SpanOf(a, p, chunk);
      PlaceChunk(a.arrays[span.array], p, EarlyRow(m, rank, sent, Count, p) + chunk * kBulkChunk, span);
    }
  }
}

// The common signature of the kernels. They differ in what they do with a piece: the chunks beginning with `first`.
using BulkKernel = void (*)(ExchangeMemory, int, BulkArrays, int64_t first, int64_t site);

// One launch for each of `pieces` = BulkExchanges(memory, largest number of chunks of a rank): collectives `site`,
// `site` + 1, ...
inline void ExchangeInBulk(const ExecContext& ctx, BulkKernel kernel, const BulkArrays& arrays, int64_t site,
                           int64_t pieces) {
  const RankView& ranks = *ctx.ranks;
  for (int64_t k = 0; k < pieces; ++k) {
    Launch(ctx, kernel, dim3(static_cast<unsigned>(ctx.gpu.multiprocessors)), dim3(kBulkThreads), 0, ranks.memory,
           ranks.rank, arrays, k * (ranks.memory.bulk_floats / kBulkChunk), site + k);
  }
}

}  // namespace dsv4
