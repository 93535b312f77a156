#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "base/str.h"
#include "device/active_clusters.h"
#include "device/cuda.h"
#include "device/launch.cuh"

namespace dsv4 {

namespace {

// Records the error of a CUDA runtime call.
bool Ok(FaultLog& faults, cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  faults.Note(what, cudaGetErrorString(error));
  return false;
}

// Limits that kernels were granted, per GPU. The driver keeps them until the GPU is reset.
std::mutex limits_mutex;
std::map<std::pair<int, const void*>, size_t> shared_limits;       // by GPU and kernel
std::map<std::tuple<int, const void*, int>, int> active_clusters;  // by GPU, kernel and blocks of a cluster

// Devices of this process on one GPU: several ranks may share a GPU.
struct Users {
  int count = 0;
  bool failed = false;  // at least one of them
};
std::mutex users_mutex;
std::map<int, Users> users;  // by GPU

void AddUser(int gpu) {
  const std::lock_guard lock(users_mutex);
  ++users[gpu].count;
}

// After some errors every call to a GPU fails until this process releases everything that it has on that GPU.
void ResetIfBroken(int gpu) {
  cudaGetLastError();
  if (cudaDeviceSynchronize() == cudaSuccess) return;
  cudaDeviceReset();
  cudaGetLastError();
  const std::lock_guard lock(limits_mutex);
  std::erase_if(shared_limits, [gpu](const auto& entry) { return entry.first.first == gpu; });
  std::erase_if(active_clusters, [gpu](const auto& entry) { return std::get<0>(entry.first) == gpu; });
}

// The last user resets the GPU if a user failed: a reset destroys everything on the GPU.
void RemoveUser(int gpu, bool failed) {
  const std::lock_guard lock(users_mutex);
  Users& u = users[gpu];
  u.failed = u.failed || failed;
  if (--u.count > 0) return;
  if (u.failed) ResetIfBroken(gpu);
  users.erase(gpu);
}

// Reads `count` 16-byte words; the sum keeps the compiler from removing the reads.
__global__ void ReadKernel(const uint4* data, size_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += 4 * stride) {
    uint4 v[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + static_cast<size_t>(j) * stride < count) v[j] = __ldcs(data + i + static_cast<size_t>(j) * stride);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0xDEADBEEF) *sink = sum;
}

class CudaRecording : public Recording {
 public:
  // `faults` belongs to the device: a recording does not outlive it.
  CudaRecording(int index, cudaGraphExec_t exec, cudaStream_t stream, int64_t num_kernels, FaultLog& faults)
      : index_(index), exec_(exec), stream_(stream), num_kernels_(num_kernels), faults_(faults) {}
  ~CudaRecording() override {
    const OnGpu on(index_);
    cudaGraphExecDestroy(exec_);
  }
  void Launch() override {
    const OnGpu on(index_);
    Ok(faults_, cudaGraphLaunch(exec_, stream_), "graph launch");
  }
  int64_t num_kernels() const override { return num_kernels_; }

 private:
  int index_;
  cudaGraphExec_t exec_;
  cudaStream_t stream_;
  int64_t num_kernels_;
  FaultLog& faults_;
};

class CudaDevice : public Device {
 public:
  CudaDevice(int index, const cudaDeviceProp& properties, cudaStream_t stream)
      : index_(index),
        name_(StrCat(properties.name, ", ", properties.multiProcessorCount, " SMs")),
        gpu_(DescribeGpu()),
        stream_(stream) {
    AddUser(index_);
  }
  ~CudaDevice() override {
    const OnGpu on(index_);
    cudaStreamSynchronize(stream_);
    for (const auto& [mark, event] : marks_) cudaEventDestroy(event);
    for (cudaEvent_t event : free_events_) cudaEventDestroy(event);
    if (scratch_ != nullptr) cudaFree(scratch_);
    cudaStreamDestroy(stream_);
    RemoveUser(index_, !faults_.status().ok());
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return name_; }
  std::string place() const override { return StrCat("GPU ", index_, " (", name_, ")"); }
  int index() const override { return index_; }
  void Bind() const override { Ok(cudaSetDevice(index_), "choice of the GPU"); }
  int64_t free_bytes() const override { return std::max<int64_t>(Memory().free - hidden_, 0); }
  void LimitMemory(int64_t bytes) override { hidden_ = std::max<int64_t>(Memory().total - bytes, 0); }
  int64_t scratch_bytes() const override { return scratch_ == nullptr ? kGpuScratchBytes : 0; }
  void* Allocate(int64_t bytes) override {
    const OnGpu on(index_);
    void* p = nullptr;
    if (hidden_ > 0 && bytes > free_bytes()) return nullptr;
    if (cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1))) == cudaSuccess) return p;
    cudaGetLastError();  // out of memory is an answer, not a failure of the GPU
    return nullptr;
  }
  void Free(void* p) override {
    const OnGpu on(index_);
    Ok(cudaFree(p), "cudaFree");
  }
  void* AllocateStaging(int64_t bytes) override {
    const OnGpu on(index_);
    void* p = nullptr;
    if (cudaMallocHost(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1))) == cudaSuccess) return p;
    cudaGetLastError();
    return nullptr;
  }
  void FreeStaging(void* p) override {
    const OnGpu on(index_);
    Ok(cudaFreeHost(p), "cudaFreeHost");
  }
  // Registered instead of allocated by the runtime: pages of 2 MiB are made and pinned several times as fast.
  void* AllocateHost(int64_t bytes) override {
    const OnGpu on(index_);
    const size_t n = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + kHugePage - 1) / kHugePage * kHugePage;
    void* const p = std::aligned_alloc(kHugePage, n);
    if (p == nullptr) return nullptr;
    (void)::madvise(p, n, MADV_HUGEPAGE);  // a hint, for speed only
    void* on_device = nullptr;
    if (cudaHostRegister(p, n, cudaHostRegisterPortable | cudaHostRegisterMapped) == cudaSuccess) {
      if (cudaHostGetDevicePointer(&on_device, p, 0) == cudaSuccess && on_device == p) return p;
      cudaHostUnregister(p);
    }
    cudaGetLastError();
    std::free(p);
    return nullptr;
  }
  void FreeHost(void* p) override {
    const OnGpu on(index_);
    Ok(cudaStreamSynchronize(stream_), "kernels");
    Ok(cudaHostUnregister(p), "cudaHostUnregister");
    std::free(p);
  }
  void Upload(void* dst, const void* src, int64_t bytes) override {
    const OnGpu on(index_);
    if (bytes > 0) Ok(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_), "upload");
  }
  void Download(void* dst, const void* src, int64_t bytes) override {
    const OnGpu on(index_);
    DownloadLater(dst, src, bytes);
    Ok(cudaStreamSynchronize(stream_), "download");
  }
  void DownloadLater(void* dst, const void* src, int64_t bytes) override {
    const OnGpu on(index_);
    if (bytes > 0) Ok(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "download");
  }
  void CopyWithin(void* dst, const void* src, int64_t bytes) override {
    const OnGpu on(index_);
    if (bytes > 0) Ok(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_), "copy");
  }
  void CopyColumns(void* dst, const void* src, int64_t rows, int64_t bytes, int64_t stride) override {
    const OnGpu on(index_);
    const auto width = static_cast<size_t>(bytes);
    if (rows * bytes == 0) return;
    Ok(cudaMemcpy2DAsync(dst, width, src, static_cast<size_t>(stride), width, static_cast<size_t>(rows),
                         cudaMemcpyDeviceToDevice, stream_),
       "copy");
  }
  void Clear(void* dst, int64_t bytes) override {
    const OnGpu on(index_);
    if (bytes > 0) Ok(cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), stream_), "clear");
  }
  Status Synchronize() override {
    const OnGpu on(index_);
    Ok(cudaStreamSynchronize(stream_), "kernels");
    return faults_.status();
  }
  Status status() const override { return faults_.status(); }
  void Fail(const std::string& why) override { faults_.Note("simulated", why); }
  int64_t Mark() override {
    const OnGpu on(index_);
    cudaEvent_t event = nullptr;
    if (!free_events_.empty()) {
      event = free_events_.back();
      free_events_.pop_back();
    } else {
      Ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    }
    Ok(cudaEventRecord(event, stream_), "event");
    marks_.emplace(++last_mark_, event);
    return last_mark_;
  }
  Status Wait(int64_t mark) override {
    const OnGpu on(index_);
    const auto at = marks_.find(mark);
    if (at != marks_.end()) {
      Ok(cudaEventSynchronize(at->second), "kernels");
      free_events_.push_back(at->second);
      marks_.erase(at);
    }
    return faults_.status();
  }
  bool Reached(int64_t mark) override {
    const OnGpu on(index_);
    const auto at = marks_.find(mark);
    if (at == marks_.end()) return true;
    const cudaError_t state = cudaEventQuery(at->second);
    if (state == cudaErrorNotReady) cudaGetLastError();  // not ready is an answer, not a failure of the GPU
    return state != cudaErrorNotReady;
  }
  std::unique_ptr<Recording> Record(const std::function<void()>& work) override {
    const OnGpu on(index_);
    if (!Ok(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture")) return nullptr;
    work();
    cudaGraph_t graph = nullptr;
    if (!Ok(cudaStreamEndCapture(stream_, &graph), "capture")) return nullptr;
    size_t num_nodes = 0;
    cudaGraphGetNodes(graph, nullptr, &num_nodes);
    cudaGraphExec_t exec = nullptr;
    cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    if (made == cudaSuccess) made = cudaGraphUpload(exec, stream_);  // takes its memory now, not at the first launch
    if (made == cudaErrorMemoryAllocation) {  // out of memory is an answer, not a failure of the GPU
      if (exec != nullptr) cudaGraphExecDestroy(exec);
      cudaGetLastError();
      return nullptr;
    }
    if (!Ok(made, "graph")) return nullptr;
    return std::make_unique<CudaRecording>(index_, exec, stream_, static_cast<int64_t>(num_nodes), faults_);
  }
  Result<double> MeasureReadRate(ThreadPool*) override {
    const OnGpu on(index_);
    const auto bytes = static_cast<size_t>(std::min<int64_t>(int64_t{4} << 30, free_bytes() / 2)) / 16 * 16;
    void* buffer = Allocate(static_cast<int64_t>(bytes));
    if (bytes == 0 || buffer == nullptr) return ResourceExhausted("no GPU memory to measure the read rate with");
    cudaEvent_t start, end;
    cudaEventCreate(&start);
    cudaEventCreate(&end);
    cudaMemsetAsync(buffer, 0x5A, bytes, stream_);
    float best = 1e30f;
    for (int run = 0; run < 5; ++run) {
      cudaEventRecord(start, stream_);
      ReadKernel<<<gpu_.multiprocessors * 8, 512, 0, stream_>>>(static_cast<const uint4*>(buffer), bytes / 16,
                                                                static_cast<uint32_t*>(buffer));
      cudaEventRecord(end, stream_);
      Ok(cudaEventSynchronize(end), "read rate");
      float ms = 0;
      cudaEventElapsedTime(&ms, start, end);
      best = std::min(best, ms);
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    Free(buffer);
    DSV4_RETURN_IF_ERROR(faults_.status());
    return static_cast<double>(bytes) / (static_cast<double>(best) * 1e-3);
  }
  ExecContext Context(ThreadPool* pool, bool) override {
    const OnGpu on(index_);
    if (scratch_ == nullptr) {
      Ok(cudaMalloc(&scratch_, kGpuScratchBytes), "no memory for the ops' scratch space");
      // NaNs, in case an op uses memory that it did not write. (Some ops load values ahead that they do not use.)
      Ok(cudaMemsetAsync(scratch_, 0xFF, kGpuScratchBytes, stream_), "scratch space");
    }
    return {.pool = pool,
            .device = DeviceKind::kCuda,
            .gpu = gpu_,
            .stream = stream_,
            .faults = &faults_,
            .scratch = {static_cast<uint8_t*>(scratch_), kGpuScratchBytes}};
  }

 private:
  static constexpr size_t kHugePage = size_t{1} << 21;

  struct MemoryInfo {
    int64_t free, total;
  };
  MemoryInfo Memory() const {
    const OnGpu on(index_);
    size_t free = 0, total = 0;
    Ok(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }

  bool Ok(cudaError_t error, const char* what) const { return dsv4::Ok(faults_, error, what); }

  int index_;
  std::string name_;
  GpuInfo gpu_;
  mutable FaultLog faults_;
  cudaStream_t stream_;
  void* scratch_ = nullptr;
  int64_t hidden_ = 0;  // bytes that LimitMemory withholds
  int64_t last_mark_ = 0;
  std::map<int64_t, cudaEvent_t> marks_;
  std::vector<cudaEvent_t> free_events_;
};

__global__ void ProbeKernel() {}

}  // namespace

void NoteCudaError(const ExecContext& ctx, cudaError_t error, const char* what) {
  if (ctx.faults != nullptr) ctx.faults->Note(what, cudaGetErrorString(error));
}

namespace {

int CurrentDevice() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

}  // namespace

void EnsureSharedMemory(const ExecContext& ctx, const void* kernel, size_t bytes) {
  const std::lock_guard lock(limits_mutex);
  size_t& limit = shared_limits[{CurrentDevice(), kernel}];
  if (limit >= bytes) return;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(bytes));
  if (error != cudaSuccess) return NoteCudaError(ctx, error, "shared memory of a kernel");
  limit = bytes;
}

int MaxActiveClusters(const ExecContext& ctx, const void* kernel, int blocks, int grid, int threads,
                      size_t shared_bytes) {
  if (shared_bytes > 48 * 1024) EnsureSharedMemory(ctx, kernel, shared_bytes);
  const std::lock_guard lock(limits_mutex);
  const auto [entry, asks] = active_clusters.try_emplace({CurrentDevice(), kernel, blocks}, 0);
  if (!asks) return entry->second;
  if (blocks > 8 && cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) cudaGetLastError(), count = 0;
  return entry->second = count;
}

GpuInfo DescribeGpu() {
  const int device = CurrentDevice();
  const auto get = [&](cudaDeviceAttr attribute) {
    int value = 0;
    cudaDeviceGetAttribute(&value, attribute, device);
    return value;
  };
  GpuInfo gpu = {.arch = 10 * get(cudaDevAttrComputeCapabilityMajor) + get(cudaDevAttrComputeCapabilityMinor),
                 .multiprocessors = get(cudaDevAttrMultiProcessorCount),
                 .shared_bytes = get(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
  constexpr size_t kWholeMultiprocessor = 120 * 1024;  // more than half of a multiprocessor's shared memory
  if (gpu.arch < 90 || gpu.shared_bytes < static_cast<int64_t>(kWholeMultiprocessor)) return gpu;
  for (const int blocks : {16, 8}) {
    if (gpu.cluster_blocks == 0 && MaxActiveClusters({}, reinterpret_cast<const void*>(ProbeKernel), blocks, blocks,
                                                     1024, kWholeMultiprocessor) > 0)
      gpu.cluster_blocks = blocks;
  }
  return gpu;
}

Result<std::unique_ptr<Device>> OpenCudaDevice(const std::string& name) {
  int index = 0;
  if (name.size() > 5) {
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + 5, end, index);
    if (parsed.ec != std::errc() || parsed.ptr != end || index < 0) {
      return InvalidArgument(StrCat("device '", name, "': expected cuda, or cuda:N with the number of one GPU"));
    }
  } else if (name == "cuda:") {
    return InvalidArgument("device 'cuda:': the GPU's number is missing; use cuda or cuda:0");
  }
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess) {
    cudaGetLastError();
    return Unsupported(
        StrCat("device '", name, "': no usable NVIDIA driver (", cudaGetErrorString(found), "); use --device cpu"));
  }
  if (index >= count) {
    return Unsupported(StrCat("device '", name, "': this machine has ", count, " NVIDIA GPU", count == 1 ? "" : "s",
                              "; use a number below ", count, ", or --device cpu"));
  }
  cudaDeviceProp properties;
  cudaStream_t stream = nullptr;
  if (cudaSetDevice(index) != cudaSuccess || cudaGetDeviceProperties(&properties, index) != cudaSuccess ||
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
    return Unsupported(StrCat("device '", name, "' cannot be opened: ", cudaGetErrorString(cudaGetLastError())));
  }
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, ProbeKernel) != cudaSuccess) {
    cudaGetLastError();
    cudaStreamDestroy(stream);
    return Unsupported(StrCat("device '", name, "' (", properties.name, ", compute capability ", properties.major, ".",
                              properties.minor, "): this build has kernels for ", CompiledGpuArchitectures(),
                              " only; use --device cpu, or build with -DCMAKE_CUDA_ARCHITECTURES"));
  }
  if (properties.sharedMemPerBlockOptin < kSharedMemoryOfABlock) {
    cudaStreamDestroy(stream);
    return Unsupported(StrCat("device '", name, "' (", properties.name, ") has ",
                              properties.sharedMemPerBlockOptin / 1024,
                              " KiB of shared memory for a block; the kernels take up to ",
                              kSharedMemoryOfABlock / 1024, "; use --device cpu"));
  }
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(index, properties, stream));
}

std::string CompiledGpuArchitectures() { return DSV4_CUDA_ARCHITECTURES; }

}  // namespace dsv4
