// What the rest of the library may ask about CUDA, whether or not this build has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/copy_queue.h"
#include "device/device.h"

namespace dsv4 {

inline constexpr int64_t kGpuScratchBytes = int64_t{768} << 20;  // of a GPU's memory, for ops

// "cuda" or "cuda:N". kUnsupported: built without CUDA, no driver, no such GPU, or a GPU that the kernels in this build
// do not run on; kInvalidArgument: not a number behind the colon.
Result<std::unique_ptr<Device>> OpenCudaDevice(const std::string& name);

// OpenCopyQueue of a GPU.
std::unique_ptr<CopyQueue> OpenCudaCopyQueue(Device& device);

}  // namespace dsv4
