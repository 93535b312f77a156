// Kernel launches: one function for all kernels, so that stream, errors and programmatic launch are the same
// everywhere.
//
// A kernel launched with Launch() may start while the previous kernel still runs. Before WaitForPrevious() it must not
// read or write anything that another kernel touches. Exceptions: it may read weights, and the step's positions and
// sequences. Kernels that write positions or sequences do not call AllowNext(), so no later kernel starts before they
// end. AllowNext() lets the next kernel start early: call it once per block, at any time (early is best).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "device/exec_context.h"
#include "device/fault_log.h"
#include "device/gpu_limits.h"

namespace dsv4 {

inline cudaStream_t StreamOf(const ExecContext& ctx) { return static_cast<cudaStream_t>(ctx.stream); }

GpuInfo DescribeGpu();  // the current device

// Changes the thread's GPU for the lifetime of this object.
class OnGpu {
 public:
  explicit OnGpu(int index) : index_(index) {
    cudaGetDevice(&before_);
    if (before_ != index_) cudaSetDevice(index_);
  }
  ~OnGpu() {
    if (before_ != index_) cudaSetDevice(before_);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  int index_, before_ = 0;
};

// Records the first error of the context's device, for Device::Synchronize.
void NoteCudaError(const ExecContext& ctx, cudaError_t error, const char* what);

__device__ __forceinline__ void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

__device__ __forceinline__ void AllowNext() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Raises the kernel's limit of dynamic shared memory if it needs more than 48 KiB, once per kernel and GPU. The limit
// holds for the whole process, not for one Device.
void EnsureSharedMemory(const ExecContext& ctx, const void* kernel, size_t bytes);

// In clusters of `cluster` blocks, which are neighbours along x.
template <typename... Params, typename... Args>
void LaunchClusters(const ExecContext& ctx, void (*kernel)(Params...), int cluster, dim3 grid, dim3 block,
                    size_t shared_bytes, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 48 * 1024) EnsureSharedMemory(ctx, reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.attrs = attributes;
  if (ctx.overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = StreamOf(ctx);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
  if (error != cudaSuccess) NoteCudaError(ctx, error, "kernel launch");
}

template <typename... Params, typename... Args>
void Launch(const ExecContext& ctx, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            Args&&... args) {
  LaunchClusters(ctx, kernel, 1, grid, block, shared_bytes, std::forward<Args>(args)...);
}

}  // namespace dsv4
