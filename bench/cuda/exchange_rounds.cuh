// Measures the latency of an all-reduce within a running kernel, by form and size: each round's sum is the input of the
// next round.
#pragma once

#include "bench/cuda/ranks.cuh"

namespace dsv4::bench {

enum class Form { kWords, kWideWords, kFlags };
inline constexpr const char* kFormNames[] = {"words", "b128", "flags"};

__device__ __forceinline__ void StoreWide(uint64_t* p, uint64_t low, uint64_t high) {
  asm volatile("{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.sys.global.b128 [%0], q; }" ::"l"(p), "l"(low),
               "l"(high)
               : "memory");
}
__device__ __forceinline__ void LoadWide(const uint64_t* p, uint64_t& low, uint64_t& high) {
  asm volatile("{ .reg .b128 q; ld.relaxed.sys.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }"
               : "=l"(low), "=l"(high)
               : "l"(p)
               : "memory");
}

// Six values as two words, each of three values and a tag.
template <int Count>
__device__ __forceinline__ void RoundWide(const ExchangeMemory& m, int rank, uint32_t tag, int64_t site, int64_t lane,
                                          float (&v)[6]) {
  const auto pack = [&](int first, uint64_t& low, uint64_t& high) {
    low = __float_as_uint(v[first]) | static_cast<uint64_t>(__float_as_uint(v[first + 1])) << 32;
    high = __float_as_uint(v[first + 2]) | static_cast<uint64_t>(tag) << 32;
  };
  uint64_t w[4];
  pack(0, w[0], w[1]), pack(3, w[2], w[3]);
#pragma unroll
  for (int k = 1; k < Count; ++k) {
    uint64_t* to = m.words[static_cast<size_t>((rank + k) % Count)] + WordAt<Count>(m, tag, rank, 4 * lane);
    StoreWide(to, w[0], w[1]), StoreWide(to + 2, w[2], w[3]);
  }
  PollLimit limit;
  uint64_t got[Count][4];
  for (;;) {
    bool all = true;
    int missing = -1;
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      if (p == rank) continue;
      const uint64_t* from = m.words[static_cast<size_t>(rank)] + WordAt<Count>(m, tag, p, 4 * lane);
      LoadWide(from, got[p][0], got[p][1]), LoadWide(from + 2, got[p][2], got[p][3]);
    }
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      if (p == rank || (HasTag(got[p][1], tag) && HasTag(got[p][3], tag))) continue;
      all = false, missing = p;
    }
    if (__all_sync(0xFFFFFFFFu, all)) break;
    bool expired = false;
    const bool reached = limit.Reached(m, expired);
    if (expired && missing >= 0) ReportLate(m, rank, missing, site, tag);
    if (__any_sync(0xFFFFFFFFu, reached)) break;
  }
#pragma unroll
  for (int c = 0; c < 6; ++c) {
    float part[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p) {
      const uint64_t word = got[p][c / 3 * 2 + (c % 3) / 2];
      part[p] = p == rank ? v[c] : __uint_as_float(static_cast<uint32_t>(c % 3 == 1 ? word >> 32 : word));
    }
    v[c] = RankTree<Count>(part) * (1.0f / Count);
  }
}

template <int Count>
__device__ __forceinline__ void RoundWords(const ExchangeMemory& m, int rank, uint32_t tag, int64_t site, int64_t lane,
                                           float (&v)[6]) {
  const float own[4] = {v[0], v[1], v[2], v[3]};
  PushWords<Count>(m, rank, tag, 4 * lane, own);
  float all[Count][4];
  PollWords<Count>(m, rank, tag, site, 4 * lane, true, all);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float part[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p) part[p] = p == rank ? own[c] : all[p][c];
    v[c] = RankTree<Count>(part) * (1.0f / Count);
  }
}

// Plain stores, then a flag per block. The flags are stored after their sender's values.
template <int Count>
__device__ __forceinline__ void RoundFlags(const ExchangeMemory& m, int rank, uint32_t tag, int64_t site, int64_t lane,
                                           float (&v)[6]) {
  const auto values = [&](int owner, int sender) {
    return reinterpret_cast<float*>(m.words[static_cast<size_t>(owner)] + WordAt<Count>(m, tag, sender, 0));
  };
  const auto flag = [&](int owner, int sender) {
    return m.words[static_cast<size_t>(owner)] + WordAt<Count>(m, tag, sender, m.elements / 2) + blockIdx.x;
  };
#pragma unroll
  for (int k = 1; k < Count; ++k) {
    reinterpret_cast<float4*>(values((rank + k) % Count, rank))[lane] = make_float4(v[0], v[1], v[2], v[3]);
  }
  __syncthreads();
  if (threadIdx.x > 0 && threadIdx.x < Count) {
    const int peer = (rank + static_cast<int>(threadIdx.x)) % Count;
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag(peer, rank)), "l"(static_cast<uint64_t>(tag))
                 : "memory");
    PollLimit limit;
    for (;;) {
      uint64_t got;
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(got) : "l"(flag(rank, peer)) : "memory");
      if (got == tag) break;
      bool expired = false;
      const bool reached = limit.Reached(m, expired);
      if (expired) ReportLate(m, rank, peer, site, tag);
      if (reached) break;
    }
  }
  __syncthreads();
  float4 all[Count];
#pragma unroll
  for (int p = 0; p < Count; ++p)
    all[p] = p == rank ? make_float4(v[0], v[1], v[2], v[3])
                       : __ldcg(reinterpret_cast<const float4*>(values(rank, p)) + lane);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float part[Count];
#pragma unroll
    for (int p = 0; p < Count; ++p) part[p] = c == 0 ? all[p].x : c == 1 ? all[p].y : c == 2 ? all[p].z : all[p].w;
    v[c] = RankTree<Count>(part) * (1.0f / Count);
  }
}

// `barrier`: the block waits for all its threads before each push, as it does after a reduction. `delay_ns`: the delay
// of rank 1 before its push; it should delay the others once.
template <int Count, Form F, int MaxThreads>
__global__ void __launch_bounds__(MaxThreads)
    RoundsKernel(ExchangeMemory m, int rank, int rounds, bool barrier, uint64_t delay_ns, float* y) {
  const int64_t lane = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  float v[6];
  for (int c = 0; c < 6; ++c) v[c] = static_cast<float>(rank + c);
  for (int r = 0; r < rounds; ++r) {
    const uint32_t tag = ExchangeTag(m, r);
    if (barrier) __syncthreads();
    if (delay_ns != 0 && rank == 1) {
      const uint64_t begun = NanosecondsNow();
      while (NanosecondsNow() - begun < delay_ns) {
      }
    }
    if constexpr (F == Form::kWords) RoundWords<Count>(m, rank, tag, r, lane, v);
    if constexpr (F == Form::kWideWords) RoundWide<Count>(m, rank, tag, r, lane, v);
    if constexpr (F == Form::kFlags) RoundFlags<Count>(m, rank, tag, r, lane, v);
  }
  for (int c = 0; c < 4; ++c) y[lane * 4 + c] = v[c];
}

template <int Count, Form F>
void MeasureRounds(Ranks& ranks, int64_t bytes, int threads, bool barrier, uint64_t delay_ns) {
  const int64_t a_lane = F == Form::kWideWords ? 6 : 4, lanes = CeilDiv(CeilDiv(bytes / 4, a_lane), threads) * threads;
  const int64_t blocks = lanes / threads;
  if (blocks > 132 || lanes * 4 > kElements) return;
  const int rounds = bytes > 512 * 1024 ? 1000 : 5000;
  double best = 1e30;
  for (int run = 0; run < 3; ++run) {
    ranks.Rewind();
    std::vector<float> ms(static_cast<size_t>(Count));
    ranks.Run([&](int r) {
      cudaEvent_t begin, end;
      DSV4_BENCH_CHECK(cudaEventCreate(&begin));
      DSV4_BENCH_CHECK(cudaEventCreate(&end));
      DSV4_BENCH_CHECK(cudaEventRecord(begin, ranks.stream(r)));
      const auto kernel = threads > 256 ? RoundsKernel<Count, F, 1024> : RoundsKernel<Count, F, 256>;
      kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, ranks.stream(r)>>>(
          ranks.exchange().view(r).memory, r, rounds, barrier, delay_ns, ranks.y(r));
      DSV4_BENCH_CHECK(cudaGetLastError());
      DSV4_BENCH_CHECK(cudaEventRecord(end, ranks.stream(r)));
      DSV4_BENCH_CHECK(cudaEventSynchronize(end));
      DSV4_BENCH_CHECK(cudaEventElapsedTime(&ms[static_cast<size_t>(r)], begin, end));
      cudaEventDestroy(begin);
      cudaEventDestroy(end);
    });
    for (const float m : ms) best = std::min(best, static_cast<double>(m));
  }
  // The first round makes the ranks' values equal; the other rounds keep them.
  int64_t wrong = 0;
  std::vector<float> y(static_cast<size_t>(lanes * 4));
  for (int r = 0; r < Count; ++r) {
    DSV4_BENCH_CHECK(cudaMemcpy(y.data(), ranks.y(r), y.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < y.size(); ++i)
      wrong += y[i] != static_cast<float>(Count - 1) / 2 + static_cast<float>(i % 4);
  }
  if (wrong != 0) something_wrong = true;
  Line line("exchange_rounds");
  line.Add("gpus", Count)
      .Add("form", kFormNames[static_cast<int>(F)])
      .Add("kbytes", bytes / 1024)
      .Add("blocks", blocks)
      .Add("threads", threads);
  line.Add("barrier", barrier ? 1 : 0)
      .Add("delay_ns", static_cast<int64_t>(delay_ns))
      .Add("us_a_round", best * 1000 / rounds)
      .Add("wrong_values", wrong);
  const std::string trouble = ranks.Trouble();
  if (!trouble.empty()) line.Add("error", trouble);
  line.Print();
}

template <int Count>
void MeasureAllRounds(Ranks& ranks) {
  for (const int64_t kbytes : {16, 32, 64, 128, 256, 512, 1024, 2048}) {
    for (const int threads : {64, 256, 1024}) {
      MeasureRounds<Count, Form::kWords>(ranks, kbytes * 1024, threads, false, 0);
      MeasureRounds<Count, Form::kWideWords>(ranks, kbytes * 1024, threads, false, 0);
      MeasureRounds<Count, Form::kFlags>(ranks, kbytes * 1024, threads, false, 0);
    }
  }
  for (const int threads : {64, 256}) MeasureRounds<Count, Form::kWords>(ranks, 16 * 1024, threads, true, 0);
  for (const uint64_t delay : {500, 1000, 2000, 5000})
    MeasureRounds<Count, Form::kWords>(ranks, 16 * 1024, 64, false, delay);
}

}  // namespace dsv4::bench
