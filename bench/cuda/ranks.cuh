// Helpers of benchmarks of several GPUs: a GPU, a stream and a thread per rank, the exchange between them, and a
// watchdog that ends a program that hangs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "bench/cuda/harness.cuh"
#include "device/exchange.cuh"

namespace dsv4::bench {

inline constexpr int64_t kWidth = 4096;             // columns of a token
inline constexpr int64_t kElements = 128 * kWidth;  // 2 MB of float32
inline constexpr double kTimeout = 2;               // seconds of a poll

inline std::atomic<bool> something_wrong = false;

// Ends the program when its time is up, even if a kernel hangs.
class Watchdog {
 public:
  explicit Watchdog(double seconds)
      : thread_([this, seconds] {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return ended_; })) return;
          Line("exchange").Add("error", "the program's seconds ran out").Print();
          std::_Exit(3);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    over_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool ended_ = false;
  std::thread thread_;
};

// N GPUs, each with a stream and a thread.
class Ranks {
 public:
  Ranks(int count, double timeout_s) : count_(count) {
    for (int r = 0; r < count; ++r) {
      DSV4_BENCH_CHECK(cudaSetDevice(r));
      cudaStream_t stream;
      DSV4_BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      streams_.push_back(stream);
      infos_.push_back(DescribeGpu());
      gpus_.push_back({.index = r, .stream = stream});
      float* y;
      DSV4_BENCH_CHECK(cudaMalloc(&y, kElements * 4));
      DSV4_BENCH_CHECK(cudaMemset(y, 0, kElements * 4));
      y_.push_back(y);
      unsigned* bad;
      DSV4_BENCH_CHECK(cudaMalloc(&bad, 4));
      DSV4_BENCH_CHECK(cudaMemset(bad, 0, 4));
      bad_.push_back(bad);
      DSV4_BENCH_CHECK(cudaDeviceSynchronize());
    }
    const auto begun = std::chrono::steady_clock::now();
    auto exchange = OpenGpuExchange(gpus_, ExchangeTransport::kWords,
                                    {.timeout_s = timeout_s, .elements = kElements, .rank_name = "GPU"});
    if (!exchange.ok()) {
      Line("exchange").Add("gpus", count).Add("error", exchange.status().message()).Print();
      std::exit(1);
    }
    exchange_ = std::move(*exchange);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
    Line("exchange_open")
        .Add("gpus", count)
        .Add("ms_with_probe", ms)
        .Add("mbytes_a_gpu", static_cast<double>(ExchangeBytes({.elements = kElements, .bulk = kBulkChunk}, count,
                                                               ExchangeTransport::kWords)) /
                                 1e6)
        .Print();
  }
  ~Ranks() {
    exchange_.reset();
    for (int r = 0; r < count_; ++r) {
      cudaSetDevice(r);
      cudaFree(y_[at(r)]);
      cudaFree(bad_[at(r)]);
      cudaStreamDestroy(streams_[at(r)]);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  Exchange& exchange() { return *exchange_; }
  cudaStream_t stream(int r) const { return streams_[at(r)]; }
  float* y(int r) const { return y_[at(r)]; }
  unsigned* bad(int r) const { return bad_[at(r)]; }
  ExecContext context(int r) const {
    ExecContext ctx;
    ctx.device = DeviceKind::kCuda;
    ctx.gpu = infos_[at(r)];
    ctx.stream = streams_[at(r)];
    ctx.ranks = &exchange_->view(r);
    return ctx;
  }

  // Runs work(rank) on one thread per rank; all threads begin together.
  void Run(const std::function<void(int)>& work) {
    std::atomic<int> here = 0;
    std::vector<std::thread> threads;
    for (int r = 0; r < count_; ++r) {
      threads.emplace_back([&, r] {
        DSV4_BENCH_CHECK(cudaSetDevice(r));
        ++here;
        while (here < count_) std::this_thread::yield();
        work(r);
      });
    }
    for (std::thread& t : threads) t.join();
  }

  // Returns the number of sums that were wrong on any rank since the last call.
  int64_t TakeBad() {
    int64_t all = 0;
    for (int r = 0; r < count_; ++r) {
      unsigned n = 0;
      DSV4_BENCH_CHECK(cudaSetDevice(r));
      DSV4_BENCH_CHECK(cudaMemcpy(&n, bad_[at(r)], 4, cudaMemcpyDeviceToHost));
      DSV4_BENCH_CHECK(cudaMemset(bad_[at(r)], 0, 4));
      all += n;
    }
    return all;
  }

  // Returns "" while the exchange works, otherwise its error; the program then exits with status 1.
  std::string Trouble() {
    const Status status = exchange_->status();
    if (!status.ok()) something_wrong = true;
    return status.message();
  }
  void Rewind() {
    const Status status = exchange_->Rewind();
    if (!status.ok()) {
      Line("exchange").Add("error", status.message()).Print();
      std::exit(1);
    }
  }

 private:
  static size_t at(int r) { return static_cast<size_t>(r); }

  int count_;
  std::vector<ExchangeGpu> gpus_;
  std::vector<cudaStream_t> streams_;
  std::vector<GpuInfo> infos_;
  std::vector<float*> y_;
  std::vector<unsigned*> bad_;
  std::unique_ptr<Exchange> exchange_;
};

// Returns the milliseconds of a step on the slowest rank. Captures the step once and launches it `steps` times without
// the host between launches.
template <int Count>
double RecordedMs(Ranks& ranks, bool overlap, int steps,
                  const std::function<void(int rank, const ExecContext& ctx)>& queue) {
  ranks.Rewind();
  std::vector<float> ms(static_cast<size_t>(Count));
  ranks.Run([&](int r) {
    ExecContext ctx = ranks.context(r);
    ctx.overlap = overlap;
    DSV4_BENCH_CHECK(cudaStreamBeginCapture(ranks.stream(r), cudaStreamCaptureModeThreadLocal));
    queue(r, ctx);
    cudaGraph_t graph;
    DSV4_BENCH_CHECK(cudaStreamEndCapture(ranks.stream(r), &graph));
    cudaGraphExec_t exec;
    DSV4_BENCH_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    DSV4_BENCH_CHECK(cudaEventCreate(&begin));
    DSV4_BENCH_CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 3; ++i) DSV4_BENCH_CHECK(cudaGraphLaunch(exec, ranks.stream(r)));
    DSV4_BENCH_CHECK(cudaEventRecord(begin, ranks.stream(r)));
    for (int i = 0; i < steps; ++i) DSV4_BENCH_CHECK(cudaGraphLaunch(exec, ranks.stream(r)));
    DSV4_BENCH_CHECK(cudaEventRecord(end, ranks.stream(r)));
    DSV4_BENCH_CHECK(cudaEventSynchronize(end));
    DSV4_BENCH_CHECK(cudaEventElapsedTime(&ms[static_cast<size_t>(r)], begin, end));
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
  return static_cast<double>(*std::max_element(ms.begin(), ms.end())) / steps;
}

}  // namespace dsv4::bench
