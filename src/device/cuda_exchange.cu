#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/str.h"
#include "device/exchange_bulk.cuh"

namespace dsv4 {

namespace {

constexpr int64_t kProbeBytes = int64_t{1} << 20;
constexpr uint64_t kProbeNanoseconds = 5'000'000'000;

Status StatusOfCuda(cudaError_t error, int gpu, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  const Status status = Internal(StrCat("GPU ", gpu, ": ", what, ": ", cudaGetErrorString(error)));
  return error == cudaErrorMemoryAllocation ? ResourceExhausted(status.message()) : status;
}

__device__ uint64_t ProbePattern(int from, int to, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(from * kMaxRanks + to + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 31);
}

enum ProbeResult : int32_t { kProbeOk = 0, kProbeNothing = 1, kProbeWrong = 2 };

// Block p of rank r writes patterns into p's memory and then sets a flag there. It waits for p's flag and checks what p
// wrote here.
__global__ void ProbeLinks(ExchangeMemory m, int rank, int64_t count, int64_t num_words, int64_t flags_at,
                           int32_t* result) {
  const int peer = static_cast<int>(blockIdx.x);
  if (peer == rank) {
    if (threadIdx.x == 0) result[peer] = kProbeOk;
    return;
  }
  uint64_t* to = m.words[static_cast<size_t>(peer)];
  const uint64_t* mine = m.words[static_cast<size_t>(rank)];
  for (int64_t i = 2 * static_cast<int64_t>(threadIdx.x); i < num_words; i += 2 * static_cast<int64_t>(blockDim.x)) {
    StoreWords(to + rank * m.elements + i, ProbePattern(rank, peer, i), ProbePattern(rank, peer, i + 1));
  }
  __threadfence_system();
  __syncthreads();
  __shared__ int32_t found;
  if (threadIdx.x == 0) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to + flags_at + rank), "l"(uint64_t{1}) : "memory");
    const uint64_t begun = NanosecondsNow();
    uint64_t flag = 0;
    do {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(flag) : "l"(mine + flags_at + peer) : "memory");
    } while (flag == 0 && NanosecondsNow() - begun < kProbeNanoseconds);
    found = flag == 0 ? kProbeNothing : kProbeOk;
  }
  __syncthreads();
  bool wrong = false;
  for (int64_t i = 2 * static_cast<int64_t>(threadIdx.x); i < num_words && found == kProbeOk;
       i += 2 * static_cast<int64_t>(blockDim.x)) {
    uint64_t a, b;
    LoadWords(mine + peer * m.elements + i, a, b);
    wrong = wrong || a != ProbePattern(peer, rank, i) || b != ProbePattern(peer, rank, i + 1);
  }
  const bool any_wrong = __syncthreads_or(wrong) != 0;
  if (threadIdx.x == 0) result[peer] = any_wrong ? kProbeWrong : found;
}

__global__ void AdvanceExchangesKernel(ExchangeState* state, uint32_t count) {
  AllowNext();
  WaitForPrevious();
  state->base += count;
}

__global__ void StoreCountKernel(uint64_t* to, uint64_t count) {
  AllowNext();
  WaitForPrevious();
  *to = count;
}

class GpuExchange : public Exchange {
 public:
  GpuExchange(std::span<const ExchangeGpu> gpus, ExchangeTransport transport, ExchangeOptions options)
      : Exchange(static_cast<int>(gpus.size()), std::move(options)), ranks_(gpus.size()) {
    transport_ = transport;
    room_ = {.elements = std::max<int64_t>(4, (this->options().elements + 3) / 4 * 4),
             .bulk = transport == ExchangeTransport::kWords
                         ? std::max<int64_t>(1, BulkChunks(this->options().bulk)) * kBulkChunk
                         : 0,
             .early = transport == ExchangeTransport::kWords ? BulkChunks(this->options().early) * kBulkChunk : 0};
    for (size_t r = 0; r < gpus.size(); ++r) ranks_[r].gpu = gpus[r];
  }
  ~GpuExchange() override {
    for (Rank& r : ranks_) {
      const OnGpu on(r.gpu.index);
      if (r.copies != nullptr) cudaStreamSynchronize(r.copies);
      cudaStreamSynchronize(Stream(r));
      if (r.memory != nullptr) cudaFree(r.memory);
      if (r.pool != nullptr) cudaMemPoolDestroy(r.pool);
      if (r.state != nullptr) cudaFree(r.state);
      if (r.queued != nullptr) cudaEventDestroy(r.queued);
      if (r.ended != nullptr) cudaEventDestroy(r.ended);
      if (r.copies != nullptr) cudaStreamDestroy(r.copies);
      if (r.early_count != nullptr) cudaFree(r.early_count);
    }
    if (report_ != nullptr) cudaFreeHost(report_);
  }

  Status Open() {
    DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaHostAlloc(&report_, kHostBytes, cudaHostAllocMapped | cudaHostAllocPortable),
                                      0, "pinned memory"));
    std::fill_n(report_, kHostBytes / 8, uint64_t{0});
    for (Rank& r : ranks_) DSV4_RETURN_IF_ERROR(Allocate(r));
    DSV4_RETURN_IF_ERROR(Rewind());
    for (int r = 0; r < count(); ++r) {
      ExchangeMemory& m = views_[static_cast<size_t>(r)].memory;
      for (size_t p = 0; p < ranks_.size(); ++p) {
        m.words[p] = static_cast<uint64_t*>(ranks_[p].memory);
        m.bulk[p] = reinterpret_cast<uint8_t*>(m.words[p] + 2 * count() * room_.elements);
        m.early[p] = m.bulk[p] + 2 * count() * BulkRowBytes(room_.bulk);
      }
      m.state = ranks_[static_cast<size_t>(r)].state;
      m.report = report_;
      m.elements = room_.elements;
      m.bulk_floats = room_.bulk;
      m.early_floats = room_.early;
      views_[static_cast<size_t>(r)].transport = this->transport();
    }
    if (transport() == ExchangeTransport::kEvents) return {};
    DSV4_RETURN_IF_ERROR(Probe());
    return Clear(options().first);
  }

  void Fail(Status status) override {
    static_cast<volatile uint64_t*>(report_)[kStopWord] = 1;
    Exchange::Fail(std::move(status));
  }

  Status status() override {
    const volatile uint64_t* report = report_;
    int first = -1;
    for (int r = 0; r < count(); ++r) {
      const auto tag = [&](int rank) { return report[rank * kReportWords + 3]; };
      if (report[r * kReportWords] != 0 && (first < 0 || tag(r) < tag(first))) first = r;
    }
    if (first >= 0) {
      const volatile uint64_t* late = report + first * kReportWords;
      Fail(StatusOf(
          {.rank = first, .peer = static_cast<int>(late[1]), .site = static_cast<int64_t>(late[2]), .tag = late[3]}));
    }
    return Exchange::status();
  }

  Status Rewind() override { return Clear(0); }

  // The counters of all ranks are equal.
  Status RewindInTime() override {
    if (transport() != ExchangeTransport::kWords) return {};
    const Rank& first = ranks_.front();
    const OnGpu on(first.gpu.index);
    uint32_t base = 0;
    DSV4_RETURN_IF_ERROR(
        StatusOfCuda(cudaMemcpyAsync(&base, &first.state->base, sizeof base, cudaMemcpyDeviceToHost, Stream(first)),
                     first.gpu.index, "memory of collectives"));
    DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaStreamSynchronize(Stream(first)), first.gpu.index, "memory of collectives"));
    return base >> 31 != 0 ? Rewind() : Status{};
  }

  // kEvents (exchange.cuh: CopyToRanks).
  const float* Copy(const ExecContext& ctx, const float* x, int64_t n, int64_t site) {
    const int rank = ctx.ranks->rank;
    DSV4_CHECK(n <= room_.elements);
    Rank& mine = ranks_[static_cast<size_t>(rank)];
    const int64_t buffer = static_cast<int64_t>(mine.num_copies++ & 1) * count() * room_.elements;
    for (int k = 1; k < count(); ++k) {
      const Rank& peer = ranks_[static_cast<size_t>((rank + k) % count())];
      float* to = static_cast<float*>(peer.memory) + buffer + rank * room_.elements;
      Note(ctx, cudaMemcpyAsync(to, x, static_cast<size_t>(n) * 4, cudaMemcpyDefault, Stream(mine)));
    }
    Note(ctx, cudaEventRecord(mine.queued, Stream(mine)));
    if (!Meet(rank, site, mine.queued)) return nullptr;
    for (int k = 1; k < count(); ++k) {
      Note(ctx, cudaStreamWaitEvent(Stream(mine), static_cast<cudaEvent_t>(shown((rank + k) % count())), 0));
    }
    if (!Leave(rank, site)) return nullptr;
    return static_cast<const float*>(mine.memory) + buffer;
  }

  // kWords (exchange_bulk.cuh: SendEarly, EndEarly).
  void SendEarly(const ExecContext& ctx, const BulkArrays& arrays) {
    const int rank = ctx.ranks->rank;
    const ExchangeMemory& m = ctx.ranks->memory;
    DSV4_CHECK(arrays.chunks(rank) * kBulkChunk <= m.early_floats);
    Rank& mine = ranks_[static_cast<size_t>(rank)];
    Launch(ctx, StoreCountKernel, dim3(1), dim3(1), 0, mine.early_count, ++mine.early);
    Note(ctx, cudaEventRecord(mine.queued, Stream(mine)));
    Note(ctx, cudaStreamWaitEvent(mine.copies, mine.queued, 0));
    const auto copy = [&](void* to, const void* from, int64_t bytes) {
      Note(ctx, cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, mine.copies));
    };
    for (int k = 1; k < count(); ++k) {
      const int peer = (rank + k) % count();
      float* to = EarlyRow(m, peer, mine.early, count(), rank);
      for (const BulkArray& a : std::span(arrays.arrays).first(static_cast<size_t>(arrays.count))) {
        if (a.size(rank) > 0) copy(to, a.own, a.size(rank) * 4);
        to += a.chunks(rank) * kBulkChunk;
      }
      copy(EarlyCount(m, peer, mine.early, count(), rank), mine.early_count, 8);
    }
    Note(ctx, cudaEventRecord(mine.ended, mine.copies));
  }

  uint64_t EndEarly(const ExecContext& ctx) {
    Rank& mine = ranks_[static_cast<size_t>(ctx.ranks->rank)];
    Note(ctx, cudaStreamWaitEvent(Stream(mine), mine.ended, 0));
    return mine.early;
  }

 private:
  // Clears the memory to zeros, which match no tag, and sets the counters to `base` collectives.
  Status Clear(uint32_t base) {
    for (Rank& r : ranks_) {
      const OnGpu on(r.gpu.index);
      const ExchangeState state{.base = base,
                                .timeout_ns = static_cast<uint64_t>(std::max(0.0, options().timeout_s) * 1e9)};
      DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaMemsetAsync(r.memory, 0, static_cast<size_t>(MemoryBytes()), Stream(r)),
                                        r.gpu.index, "memory of collectives"));
      DSV4_RETURN_IF_ERROR(
          StatusOfCuda(cudaMemcpyAsync(r.state, &state, sizeof state, cudaMemcpyHostToDevice, Stream(r)), r.gpu.index,
                       "memory of collectives"));
    }
    for (Rank& r : ranks_) {
      const OnGpu on(r.gpu.index);
      DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaStreamSynchronize(Stream(r)), r.gpu.index, "memory of collectives"));
    }
    return {};
  }

  struct Rank {
    ExchangeGpu gpu;
    cudaMemPool_t pool = nullptr;
    void* memory = nullptr;
    ExchangeState* state = nullptr;
    cudaEvent_t queued = nullptr;
    uint64_t num_copies = 0;
    // For data that is sent early: the stream of the copies, the event at their end, their number, and that number in
    // GPU memory.
    cudaStream_t copies = nullptr;
    cudaEvent_t ended = nullptr;
    uint64_t early = 0;
    uint64_t* early_count = nullptr;
  };
  static constexpr size_t kHostBytes = (kStopWord + 1) * 8;

  static cudaStream_t Stream(const Rank& r) { return static_cast<cudaStream_t>(r.gpu.stream); }
  static void Note(const ExecContext& ctx, cudaError_t error) {
    if (error != cudaSuccess) NoteCudaError(ctx, error, "collective between GPUs");
  }
  int64_t MemoryBytes() const { return ExchangeBytes(room_, count(), transport()); }

  Status Allocate(Rank& r) {
    const OnGpu on(r.gpu.index);
    const int gpu = r.gpu.index;
    const auto bytes = static_cast<size_t>(MemoryBytes());
    DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaMalloc(&r.state, sizeof(ExchangeState)), gpu, "memory of collectives"));
    DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaEventCreateWithFlags(&r.queued, cudaEventDisableTiming), gpu, "event"));
    if (transport() == ExchangeTransport::kEvents) {
      return StatusOfCuda(cudaMalloc(&r.memory, bytes), gpu, "memory of collectives");
    }
    DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaEventCreateWithFlags(&r.ended, cudaEventDisableTiming), gpu, "event"));
    DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaStreamCreateWithFlags(&r.copies, cudaStreamNonBlocking), gpu, "stream"));
    DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaMalloc(&r.early_count, 8), gpu, "memory of collectives"));
    // A separate pool: only this memory is mapped into the peers, not every allocation of the program.
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = gpu;
    DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaMemPoolCreate(&r.pool, &properties), gpu, "memory of collectives"));
    for (const Rank& peer : ranks_) {
      if (peer.gpu.index == gpu) continue;
      int can = 0;
      if (cudaDeviceCanAccessPeer(&can, peer.gpu.index, gpu) != cudaSuccess || can == 0) {
        cudaGetLastError();
        return Unsupported(StrCat(
            "GPU ", peer.gpu.index, " has no access to the memory of GPU ", gpu,
            " (PCIe access control, an IOMMU or a virtual machine in the way); use one GPU, or --collectives events"));
      }
      cudaMemAccessDesc access = {};
      access.location.type = cudaMemLocationTypeDevice;
      access.location.id = peer.gpu.index;
      access.flags = cudaMemAccessFlagsProtReadWrite;
      DSV4_RETURN_IF_ERROR(StatusOfCuda(cudaMemPoolSetAccess(r.pool, &access, 1), gpu, "access of the peers"));
    }
    DSV4_RETURN_IF_ERROR(
        StatusOfCuda(cudaMallocFromPoolAsync(&r.memory, bytes, r.pool, Stream(r)), gpu, "memory of collectives"));
    return StatusOfCuda(cudaStreamSynchronize(Stream(r)), gpu, "memory of collectives");
  }

  // Probes every pair in both directions at once. Ends by itself, also if a link is broken.
  Status Probe() {
    const int64_t words = std::min(room_.elements, kProbeBytes / 8);
    std::vector<int32_t*> results(ranks_.size());
    Status status;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const OnGpu on(ranks_[r].gpu.index);
      if (status.ok()) status = StatusOfCuda(cudaMalloc(&results[r], kMaxRanks * 4), ranks_[r].gpu.index, "probe");
    }
    for (size_t r = 0; r < ranks_.size() && status.ok(); ++r) {
      const OnGpu on(ranks_[r].gpu.index);
      ProbeLinks<<<static_cast<unsigned>(count()), 512, 0, Stream(ranks_[r])>>>(
          views_[r].memory, static_cast<int>(r), count(), words, MemoryBytes() / 8 - kMaxRanks, results[r]);
      status = StatusOfCuda(cudaGetLastError(), ranks_[r].gpu.index, "probe of the links");
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const OnGpu on(ranks_[r].gpu.index);
      std::vector<int32_t> found(kMaxRanks, kProbeOk);
      const Status here = StatusOfCuda(cudaStreamSynchronize(Stream(ranks_[r])), ranks_[r].gpu.index,
                                       "probe of the links");
      if (status.ok()) status = here;
      if (status.ok())
        status = StatusOfCuda(
            cudaMemcpy(found.data(), results[r], static_cast<size_t>(count()) * 4, cudaMemcpyDeviceToHost),
            ranks_[r].gpu.index, "probe");
      if (results[r] != nullptr) cudaFree(results[r]);
      for (size_t p = 0; p < ranks_.size() && status.ok(); ++p) {
        if (found[p] == kProbeOk) continue;
        status = Unsupported(StrCat("GPU ", ranks_[r].gpu.index,
                                    found[p] == kProbeNothing ? " got nothing" : " got wrong data", " from GPU ",
                                    ranks_[p].gpu.index,
                                    " though the driver grants access (PCIe access control, an IOMMU or a virtual "
                                    "machine in the way); use one GPU, or "
                                    "--collectives events"));
      }
    }
    return status;
  }

  std::vector<Rank> ranks_;
  ExchangeRoom room_;
  uint64_t* report_ = nullptr;
};

}  // namespace

const float* CopyToRanks(const ExecContext& ctx, const float* x, int64_t n, int64_t site) {
  return static_cast<GpuExchange*>(ctx.ranks->exchange)->Copy(ctx, x, n, site);
}

void SendEarly(const ExecContext& ctx, const BulkArrays& arrays) {
  static_cast<GpuExchange*>(ctx.ranks->exchange)->SendEarly(ctx, arrays);
}
uint64_t EndEarly(const ExecContext& ctx) { return static_cast<GpuExchange*>(ctx.ranks->exchange)->EndEarly(ctx); }

Result<std::unique_ptr<Exchange>> OpenGpuExchange(std::span<const ExchangeGpu> gpus, ExchangeTransport transport,
                                                  const ExchangeOptions& options) {
  DSV4_CHECK(transport != ExchangeTransport::kHost);
  for (size_t a = 0; a < gpus.size() && transport == ExchangeTransport::kWords; ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (gpus[a].index == gpus[b].index)
        return InvalidArgument(StrCat("GPU ", gpus[a].index, " has two ranks: they need collectives by events"));
    }
  }
  auto exchange = std::make_unique<GpuExchange>(gpus, transport, options);
  DSV4_RETURN_IF_ERROR(exchange->Open());
  return std::unique_ptr<Exchange>(std::move(exchange));
}

void AdvanceExchanges(const ExecContext& ctx, int64_t site) {
  const auto count = static_cast<uint32_t>(site);
  if (ctx.ranks == nullptr || ctx.ranks->exchange->transport() != ExchangeTransport::kWords || count == 0) return;
  Launch(ctx, AdvanceExchangesKernel, dim3(1), dim3(1), 0, ctx.ranks->memory.state, count);
}

}  // namespace dsv4
