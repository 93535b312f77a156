// Words: how kernels push and poll them, and the common kernel of the two collectives.
//
// A word has 64 bits: a float32 in the low half, a tag in the high half. One access writes or reads a whole word, so it
// is never torn. Words need no order among each other: no fence, no flag. tag = state->base + site + 1 never repeats
// (Exchange::Rewind). The buffer is tag & 1.
//
// A buffer is free when a rank writes it again. Rank r pushes collective k + 2 after it has polled all words of k + 1.
// Peer p pushed its words of k + 1 after its own poll of k, in stream order. So p has read buffer k & 1 before r writes
// it.
//
// No rank waits without end. On every rank the push of k precedes the poll of k. All blocks of a kernel are resident
// together (at most one per multiprocessor), and each pushes all its words before it polls.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/exchange.h"
#include "device/launch.cuh"

namespace dsv4 {

__device__ __forceinline__ uint64_t ExchangeWord(float value, uint32_t tag) {
  return (static_cast<uint64_t>(tag) << 32) | __float_as_uint(value);
}
__device__ __forceinline__ float ValueOfWord(uint64_t word) { return __uint_as_float(static_cast<uint32_t>(word)); }
__device__ __forceinline__ bool HasTag(uint64_t word, uint32_t tag) { return static_cast<uint32_t>(word >> 32) == tag; }

// Two words, 16-byte aligned.
__device__ __forceinline__ void StoreWords(uint64_t* p, uint64_t a, uint64_t b) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
__device__ __forceinline__ void StoreWord(uint64_t* p, uint64_t a) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(p), "l"(a) : "memory");
}
__device__ __forceinline__ void LoadWords(const uint64_t* p, uint64_t& a, uint64_t& b) {
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
}

__device__ __forceinline__ uint64_t NanosecondsNow() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  return now;
}

// The report on the host: [kMaxRanks][4], then one word. If that word is not 0, all ranks stop waiting.
inline constexpr int kReportWords = 4;
inline constexpr int kStopWord = kMaxRanks * kReportWords;

// Decides whether one poll has waited long enough. It reads the clock at intervals, and the host's word only after a
// long wait: that word is reached over PCIe, where the reads of some hundred warps take as long as a step.
class PollLimit {
 public:
  // Call after each unsuccessful try. True: continue with the values present. `expired`: this poll itself ran out of
  // time.
  __device__ bool Reached(const ExchangeMemory& m, bool& expired) {
    constexpr uint64_t kLookAtHost = 5'000'000;  // nanoseconds
    if ((++tries_ & 63u) != 0) return false;
    if (*const_cast<volatile uint32_t*>(&m.state->failed) != 0) return true;
    const uint64_t limit = m.state->timeout_ns, now = NanosecondsNow();
    if (begun_ == 0) begun_ = looked_ = now;
    if (now - looked_ > kLookAtHost) {
      looked_ = now;
      if (*const_cast<volatile uint64_t*>(&m.report[kStopWord]) != 0) {
        *const_cast<volatile uint32_t*>(&m.state->failed) = 1;
        return true;
      }
    }
    expired = limit != 0 && now - begun_ > limit;
    return expired;
  }

 private:
  uint32_t tries_ = 0;
  uint64_t begun_ = 0, looked_ = 0;
};

// The first poll of a rank that runs out of time reports to the host. `rank`, `peer`, `site`, `tag`: see
// ExchangeFailure.
__device__ inline void ReportLate(const ExchangeMemory& m, int rank, int peer, int64_t site, uint32_t tag) {
  if (atomicCAS(&m.state->failed, 0u, 1u) != 0) return;
  volatile uint64_t* report = m.report + rank * kReportWords;
  report[1] = static_cast<uint64_t>(peer);
  report[2] = static_cast<uint64_t>(site);
  report[3] = tag;
  __threadfence_system();
  report[0] = static_cast<uint64_t>(rank) + 1;
}

__device__ __forceinline__ uint32_t ExchangeTag(const ExchangeMemory& m, int64_t site) {
  return m.state->base + static_cast<uint32_t>(site) + 1;
}

template <int Count>
__device__ __forceinline__ int64_t WordAt(const ExchangeMemory& m, uint32_t tag, int sender, int64_t element) {
  return (static_cast<int64_t>(tag & 1) * Count + sender) * m.elements + element;
}

// The four values of a lane: elements first, first + 1 and second, second + 1. Both indices are even.
struct WordPairs {
  int64_t first, second;
  bool has_first = true, has_second = true;
};

// Sends words to every peer.
template <int Count>
__device__ __forceinline__ void PushWords(const ExchangeMemory& m, int rank, uint32_t tag, const WordPairs& pairs,
                                          const float (&v)[4]) {
  const int64_t at = WordAt<Count>(m, tag, rank, 0);
#pragma unroll
  for (int k = 1; k < Count; ++k) {
    uint64_t* to = m.words[static_cast<size_t>((rank + k) % Count)] + at;
    if (pairs.has_first) StoreWords(to + pairs.first, ExchangeWord(v[0], tag), ExchangeWord(v[1], tag));
    if (pairs.has_second) StoreWords(to + pairs.second, ExchangeWord(v[2], tag), ExchangeWord(v[3], tag));
  }
}

// The parameters that let a kernel send its rank's partial sum while it computes it.
struct RankPush {
  ExchangeMemory memory;
  int rank, count;
  int64_t site;
};
inline RankPush PushOf(const RankView& ranks, int64_t site) { return {ranks.memory, ranks.rank, ranks.count, site}; }

// Sends one value to every peer.
__device__ __forceinline__ void PushWord(const RankPush& push, uint32_t tag, int64_t element, float v) {
  const ExchangeMemory& m = push.memory;
  const int64_t at = (static_cast<int64_t>(tag & 1) * push.count + push.rank) * m.elements + element;
  for (int k = 1; k < push.count; ++k)
    StoreWord(m.words[static_cast<size_t>((push.rank + k) & (push.count - 1))] + at, ExchangeWord(v, tag));
}

// Gets four values from every other rank; v[rank] is not changed. All lanes of a warp call it together. Lanes with
// nothing to wait for stay until the whole warp has its values.
template <int Count>
__device__ __forceinline__ void PollPairs(const ExchangeMemory& m, int rank, uint32_t tag, int64_t site,
                                          const WordPairs& pairs, float (&v)[Count][4]) {
  const uint64_t* mine = m.words[static_cast<size_t>(rank)];
  PollLimit limit;
  for (;;) {
    uint64_t w[Count][4];
    int missing = -1;
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      if (p == rank) continue;
      const uint64_t* from = mine + WordAt<Count>(m, tag, p, 0);
      w[p][0] = w[p][1] = w[p][2] = w[p][3] = ExchangeWord(0, tag);
      if (pairs.has_first) LoadWords(from + pairs.first, w[p][0], w[p][1]);
      if (pairs.has_second) LoadWords(from + pairs.second, w[p][2], w[p][3]);
    }
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      if (p == rank) continue;
      if (!HasTag(w[p][0], tag) || !HasTag(w[p][1], tag) || !HasTag(w[p][2], tag) || !HasTag(w[p][3], tag)) missing = p;
#pragma unroll
      for (int c = 0; c < 4; ++c) v[p][c] = ValueOfWord(w[p][c]);
    }
    if (__all_sync(0xFFFFFFFFu, missing < 0)) return;
    bool expired = false;
    const bool reached = limit.Reached(m, expired);
    if (expired && missing >= 0) ReportLate(m, rank, missing, site, tag);
    if (__any_sync(0xFFFFFFFFu, reached)) return;
  }
}

// The same for four values starting at `element` (a multiple of 4).
template <int Count>
__device__ __forceinline__ void PushWords(const ExchangeMemory& m, int rank, uint32_t tag, int64_t element,
                                          const float (&v)[4]) {
  PushWords<Count>(m, rank, tag, WordPairs{element, element + 2}, v);
}
template <int Count>
__device__ __forceinline__ void PollWords(const ExchangeMemory& m, int rank, uint32_t tag, int64_t site,
                                          int64_t element, bool wanted, float (&v)[Count][4]) {
  PollPairs<Count>(m, rank, tag, site, WordPairs{element, element + 2, wanted, wanted}, v);
}

template <int Count>
__device__ __forceinline__ float RankTree(const float (&part)[Count]) {
  float v[Count];
#pragma unroll
  for (int p = 0; p < Count; ++p) v[p] = part[p];
#pragma unroll
  for (int width = 1; width < Count; width *= 2) {
#pragma unroll
    for (int p = 0; p < Count; p += 2 * width) v[p] += v[p + width];
  }
  return v[0];
}

inline constexpr int kExchangeThreads = 256;

// Exchanges x [n] of all ranks; take(i, part) gets element i of each rank.
template <int Count, typename Take>
__global__ void __launch_bounds__(kExchangeThreads)
    ExchangeKernel(ExchangeMemory m, int rank, const float* x, int64_t n, int64_t site, Take take) {
  AllowNext();
  WaitForPrevious();
  const uint32_t tag = ExchangeTag(m, site);
  // A warp has 128 elements. A lane stores and polls pairs next to its neighbours' pairs: so whole sectors are sent.
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x * 4;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x / 32 * 32) * 4;
  const int64_t lane = threadIdx.x % 32;
  const auto pairs_of = [&](int64_t i) {
    const int64_t a = i + 2 * lane, b = a + 64;
    return WordPairs{a, b, a < n, b < n};
  };
  const auto element = [](const WordPairs& pairs, int c) { return c < 2 ? pairs.first + c : pairs.second + c - 2; };
  const auto load = [&](const WordPairs& pairs, float(&v)[4]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) v[c] = element(pairs, c) < n ? x[element(pairs, c)] : 0.0f;
  };
  for (int64_t i = first; i < n; i += stride) {
    float v[4];
    load(pairs_of(i), v);
    PushWords<Count>(m, rank, tag, pairs_of(i), v);
  }
  for (int64_t i = first; i < n; i += stride) {
    const WordPairs pairs = pairs_of(i);
    float v[Count][4], own[4];
    PollPairs<Count>(m, rank, tag, site, pairs, v);
    load(pairs, own);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float part[Count];
#pragma unroll
      for (int p = 0; p < Count; ++p) part[p] = p == rank ? own[c] : v[p][c];
      if (element(pairs, c) < n) take(element(pairs, c), part);
    }
  }
}

// The same for values that arrived as copies, slots [Count][elements]; events have ordered the streams.
template <int Count, typename Take>
__global__ void __launch_bounds__(kExchangeThreads)
    ArrivedKernel(const float* slots, int64_t elements, int rank, const float* x, int64_t n, Take take) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float part[Count];
#pragma unroll
  for (int p = 0; p < Count; ++p) part[p] = p == rank ? x[i] : slots[p * elements + i];
  take(i, part);
}

// kEvents: copies x [n] into every other rank's memory, waits until all ranks have queued their copies, and orders the
// stream after them. Returns the values of the ranks; null: the exchange has failed.
const float* CopyToRanks(const ExecContext& ctx, const float* x, int64_t n, int64_t site);

template <int Count, typename Take>
void ExchangeOnGpu(const ExecContext& ctx, const float* x, int64_t n, int64_t site, const Take& take) {
  const RankView& ranks = *ctx.ranks;
  if (ranks.transport == ExchangeTransport::kEvents) {
    const float* slots = CopyToRanks(ctx, x, n, site);
    if (slots == nullptr) return;
    Launch(ctx, ArrivedKernel<Count, Take>, dim3(static_cast<unsigned>((n + kExchangeThreads - 1) / kExchangeThreads)),
           dim3(kExchangeThreads), 0, slots, ranks.memory.elements, ranks.rank, x, n, take);
    return;
  }
  // Small blocks poll faster. Never more than one block per multiprocessor (see above).
  const int64_t lanes = (n + 3) / 4, sms = ctx.gpu.multiprocessors, threads = lanes <= 64 * sms ? 64 : kExchangeThreads;
  const int64_t blocks = (lanes + threads - 1) / threads;
  Launch(ctx, ExchangeKernel<Count, Take>, dim3(static_cast<unsigned>(blocks < sms ? blocks : sms)),
         dim3(static_cast<unsigned>(threads)), 0, ranks.memory, ranks.rank, x, n, site, take);
}

}  // namespace dsv4
