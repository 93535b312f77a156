// Measures and tests the exchange between GPUs alone:
// - the time of an all-reduce by form, size and number of blocks, in a running kernel and in CUDA graphs that every
//   rank launches from its own thread,
// - a million exchanges with random delays of the ranks,
// - a rank that never arrives,
// - CUDA calls of the host while kernels poll.
//
//   exchange_bench [--seconds 100] [--gpus N] [--only exposed|sizes]
//
// `--only exposed` measures only the part that a decode step of one row waits for, `--only sizes` only all-reduces in
// CUDA graphs by number of rows. Every poll has a time-out, so the program always ends. Exit status: 0, 1 if a result
// was wrong, 3 if the seconds ran out. Prints one JSON object per line. With fewer than two GPUs it reports that and
// ends.
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "bench/cuda/exchange_rounds.cuh"
#include "bench/cuda/exposed_rounds.cuh"
#include "bench/cuda/ranks.cuh"
#include "ops/sum_ranks/sum_ranks.h"

namespace dsv4 {
void SumRanksCuda(const ExecContext& ctx, const SumRanksArgs& args);
}

namespace dsv4::bench {
namespace {

// ---- A million exchanges with random delays. ----

// Returns the input of `rank` in exchange s, column i: an integer, so that every sum is exact and known.
__host__ __device__ __forceinline__ float Brings(int rank, uint32_t s, int64_t i) {
  return static_cast<float>((s * 2654435761u >> 8) % 4096 + static_cast<uint32_t>(i % 1024) * 8 +
                            static_cast<uint32_t>(rank) + 1);
}
template <int Count>
__device__ __forceinline__ float Wanted(uint32_t s, int64_t i) {
  float sum = 0;
  for (int p = 0; p < Count; ++p) sum += Brings(p, s, i);
  return sum;
}

__device__ __forceinline__ void Stumble(uint64_t seed) {
  const uint64_t dice = Mix(seed);
  if ((dice & 15) != 0) return;
  const uint64_t ns = (dice >> 8) % 4000, begun = NanosecondsNow();
  while (NanosecondsNow() - begun < ns) {
  }
}

template <int Count>
__global__ void __launch_bounds__(256)
    StumbleKernel(ExchangeMemory m, int rank, uint32_t rounds, uint64_t seed, unsigned* bad) {
  const int64_t lane = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned wrong = 0;
  for (uint32_t s = 0; s < rounds; ++s) {
    const uint32_t tag = ExchangeTag(m, s);
    Stumble(seed + (static_cast<uint64_t>(rank) << 48) + (static_cast<uint64_t>(blockIdx.x) << 32) + s);
    float own[4], all[Count][4];
    for (int c = 0; c < 4; ++c) own[c] = Brings(rank, s, lane * 4 + c);
    PushWords<Count>(m, rank, tag, lane * 4, own);
    PollWords<Count>(m, rank, tag, s, lane * 4, true, all);
    for (int c = 0; c < 4; ++c) {
      float part[Count];
      for (int p = 0; p < Count; ++p) part[p] = p == rank ? own[c] : all[p][c];
      wrong += RankTree<Count>(part) != Wanted<Count>(s, lane * 4 + c);
    }
  }
  if (wrong != 0) atomicAdd(bad, wrong);
}

template <int Count>
void StressRounds(Ranks& ranks, uint32_t rounds) {
  for (const int blocks : {16, 64}) {
    ranks.Rewind();
    const auto begun = std::chrono::steady_clock::now();
    ranks.Run([&](int r) {
      StumbleKernel<Count><<<static_cast<unsigned>(blocks), 64, 0, ranks.stream(r)>>>(ranks.exchange().view(r).memory,
                                                                                      r, rounds, 12345, ranks.bad(r));
      DSV4_BENCH_CHECK(cudaGetLastError());
      DSV4_BENCH_CHECK(cudaStreamSynchronize(ranks.stream(r)));
    });
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    const int64_t wrong = ranks.TakeBad();
    Line line("exchange_stress");
    line.Add("gpus", Count)
        .Add("blocks", blocks)
        .Add("exchanges", static_cast<int64_t>(rounds))
        .Add("wrong_values", wrong)
        .Add("seconds", s);
    const std::string trouble = ranks.Trouble();
    if (!trouble.empty()) line.Add("error", trouble);
    if (wrong != 0) something_wrong = true;
    line.Print();
  }
}

// ---- The op in CUDA graphs, launched from one thread per rank. ----

constexpr int kSites = 86;

__global__ void BringKernel(ExchangeMemory m, int rank, int site, int64_t n, float* y, uint64_t seed) {
  AllowNext();
  WaitForPrevious();
  const uint32_t s = ExchangeTag(m, site);
  if (seed != 0) Stumble(seed + (static_cast<uint64_t>(rank) << 48) + (static_cast<uint64_t>(blockIdx.x) << 32) + s);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = Brings(rank, s, i);
}

template <int Count>
__global__ void CheckKernel(ExchangeMemory m, int site, int64_t n, const float* y, unsigned* bad) {
  AllowNext();
  WaitForPrevious();
  const uint32_t s = ExchangeTag(m, site);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n && y[i] != Wanted<Count>(s, i)) atomicAdd(bad, 1u);
}

// The work of an all-reduce's kernel, without a peer.
__global__ void AloneKernel(int64_t n, float* y) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
  if (i < n) *reinterpret_cast<float4*>(y + i) = *reinterpret_cast<const float4*>(y + i);
}

enum class StepKind { kAlone, kSum, kChecked };

template <int Count>
void QueueStep(Ranks& ranks, int r, const ExecContext& ctx, int64_t tokens, StepKind kind, uint64_t seed) {
  const ExchangeMemory& m = ctx.ranks->memory;
  for (int site = 0; site < kSites; ++site) {
    // Checked runs change the size: the memory after a small payload keeps values of older, larger ones.
    const int64_t rows = kind == StepKind::kChecked && site % 3 == 0 ? 1 : tokens, n = rows * kWidth;
    const dim3 blocks(static_cast<unsigned>(CeilDiv(n, 256)));
    if (kind == StepKind::kChecked) Launch(ctx, BringKernel, blocks, dim3(256), 0, m, r, site, n, ranks.y(r), seed);
    if (kind == StepKind::kAlone) {
      Launch(ctx, AloneKernel, dim3(static_cast<unsigned>(CeilDiv(n, 1024))), dim3(256), 0, n, ranks.y(r));
    } else {
      SumRanksCuda(ctx, {.y = {ranks.y(r), DType::kF32, {rows, kWidth}}, .site = site});
    }
    if (kind == StepKind::kChecked)
      Launch(ctx, CheckKernel<Count>, blocks, dim3(256), 0, m, site, n, static_cast<const float*>(ranks.y(r)),
             ranks.bad(r));
  }
  if (kind != StepKind::kAlone) AdvanceExchanges(ctx, kSites);
}

template <int Count>
double StepMs(Ranks& ranks, int64_t tokens, StepKind kind, uint64_t seed, bool overlap, int steps) {
  return RecordedMs<Count>(ranks, overlap, steps,
                           [&](int r, const ExecContext& ctx) { QueueStep<Count>(ranks, r, ctx, tokens, kind, seed); });
}

template <int Count>
void MeasureGraphs(Ranks& ranks) {
  for (const int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 128}) {
    for (const bool overlap : {true, false}) {
      const double alone = StepMs<Count>(ranks, tokens, StepKind::kAlone, 0, overlap, 100);
      const double sum = StepMs<Count>(ranks, tokens, StepKind::kSum, 0, overlap, 100);
      Line line("exchange_graph");
      line.Add("gpus", Count)
          .Add("tokens", tokens)
          .Add("overlap", overlap ? 1 : 0)
          .Add("us_a_sum", sum * 1000 / kSites);
      line.Add("us_alone", alone * 1000 / kSites).Add("us_more", (sum - alone) * 1000 / kSites);
      const std::string trouble = ranks.Trouble();
      if (!trouble.empty()) line.Add("error", trouble);
      line.Print();
    }
  }
}

template <int Count>
void StressGraphs(Ranks& ranks) {
  for (const bool overlap : {true, false}) {
    for (const int64_t tokens : {1, 33}) {
      const int steps = 1500;
      const double ms = StepMs<Count>(ranks, tokens, StepKind::kChecked, 777, overlap, steps);
      const int64_t wrong = ranks.TakeBad();
      Line line("exchange_graph_stress");
      line.Add("gpus", Count)
          .Add("tokens", tokens)
          .Add("overlap", overlap ? 1 : 0)
          .Add("exchanges", int64_t{steps + 3} * kSites);
      line.Add("wrong_values", wrong).Add("ms_a_step", ms);
      const std::string trouble = ranks.Trouble();
      if (!trouble.empty()) line.Add("error", trouble);
      if (wrong != 0) something_wrong = true;
      line.Print();
    }
  }
}

// ---- A rank that never arrives, and CUDA calls of the host while the others poll. ----

void MeasureDeadRank(int count) {
  Ranks ranks(count, 0.5);
  double seconds = 0;
  std::mutex mutex;
  ranks.Run([&](int r) {
    if (r == 1) return;
    const auto begun = std::chrono::steady_clock::now();
    const ExecContext ctx = ranks.context(r);
    for (int site = 0; site < kSites; ++site)
      SumRanksCuda(ctx, {.y = {ranks.y(r), DType::kF32, {1, kWidth}}, .site = site});
    DSV4_BENCH_CHECK(cudaStreamSynchronize(ranks.stream(r)));
    const std::lock_guard lock(mutex);
    seconds = std::max(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  });
  const Status status = ranks.exchange().status();
  const bool right = !status.ok() && status.message().find("GPU 1 sent nothing to GPU ") == 0 && seconds < 2;
  if (!right) something_wrong = true;
  Line("exchange_dead")
      .Add("gpus", count)
      .Add("timeout_s", 0.5)
      .Add("seconds", seconds)
      .Add("right", right ? 1 : 0)
      .Add("message", status.message())
      .Print();
}

void MeasureHostCalls(int count) {
  Ranks ranks(count, 4);
  std::atomic<int> measured = 0;
  const auto ms_of = [](const std::function<void()>& call) {
    const auto begun = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
  };
  ranks.Run([&](int r) {
    const ExecContext ctx = ranks.context(r);
    const auto sum = [&] { SumRanksCuda(ctx, {.y = {ranks.y(r), DType::kF32, {1, kWidth}}}); };
    if (r != 1) sum();
    if (r == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the kernel is polling
      void *device = nullptr, *host = nullptr;
      const double malloc_ms = ms_of([&] { DSV4_BENCH_CHECK(cudaMalloc(&device, 64 << 20)); });
      const double pinned_ms = ms_of([&] { DSV4_BENCH_CHECK(cudaMallocHost(&host, 1 << 20)); });
      measured = 1;
      const double free_ms = ms_of([&] { DSV4_BENCH_CHECK(cudaFree(device)); });
      cudaFreeHost(host);
      Line("exchange_host_calls")
          .Add("gpus", count)
          .Add("malloc_ms", malloc_ms)
          .Add("malloc_pinned_ms", pinned_ms)
          .Add("free_ms", free_ms)
          .Print();
    } else if (r == 1) {
      const auto begun = std::chrono::steady_clock::now();
      while (measured == 0 && std::chrono::steady_clock::now() - begun < std::chrono::seconds(3))
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // if cudaFree on GPU 0 waits, it is waiting
      sum();
    }
    DSV4_BENCH_CHECK(cudaStreamSynchronize(ranks.stream(r)));
  });
  const Status status = ranks.exchange().status();
  if (!status.ok()) Line("exchange_host_calls").Add("gpus", count).Add("note", status.message()).Print();
}

template <int Count>
void MeasureGpus(std::string_view only) {
  {
    Ranks ranks(Count, kTimeout);
    if (only == "sizes") return MeasureGraphs<Count>(ranks);
    MeasureExposed<Count>(ranks);
    if (only == "exposed") return;
    StressRounds<Count>(ranks, 1'000'000);
    StressGraphs<Count>(ranks);
    MeasureGraphs<Count>(ranks);
    MeasureAllRounds<Count>(ranks);
  }
  MeasureDeadRank(Count);
  MeasureHostCalls(Count);
}

int Main(int argc, char** argv) {
  double seconds = 100;
  int gpus = kMaxRanks;
  std::string_view only;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--gpus") == 0) gpus = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  if (!only.empty() && only != "exposed" && only != "sizes") {
    std::fprintf(stderr, "exchange_bench: --only %s is unknown: use exposed or sizes\n", std::string(only).c_str());
    return 2;
  }
  // Loading a kernel may wait for a kernel that polls, so all kernels are loaded first.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const Watchdog watchdog(seconds);
  int found = 0;
  if (cudaGetDeviceCount(&found) != cudaSuccess) found = 0;
  gpus = std::min(gpus, found);
  if (gpus < 2) {
    Line("exchange").Add("gpus", found).Add("skipped", "needs two GPUs").Print();
    return 0;
  }
  MeasureGpus<2>(only);
  if (gpus >= 4) MeasureGpus<4>(only);
  if (gpus >= 8) MeasureGpus<8>(only);
  Line("exchange_end").Add("wrong", something_wrong ? 1 : 0).Print();
  return something_wrong ? 1 : 0;
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) { return dsv4::bench::Main(argc, argv); }
