// The library's interface to CUDA, in builds with and without CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/copy_queue.h"
#include "device/device.h"

namespace dsv4 {

inline constexpr int64_t kGpuScratchBytes = int64_t{768} << 20;  // of GPU memory, for ops

// Opens "cuda" or "cuda:N". kUnsupported: built without CUDA, no driver, no such GPU, or a GPU that this build has no
// kernels for. kInvalidArgument: no number after the colon.
Result<std::unique_ptr<Device>> OpenCudaDevice(const std::string& name);

// OpenCopyQueue for a GPU.
std::unique_ptr<CopyQueue> OpenCudaCopyQueue(Device& device);

}  // namespace dsv4
