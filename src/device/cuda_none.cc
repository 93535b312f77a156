// The build without CUDA.
#include "base/str.h"
#include "device/cuda.h"

namespace dsv4 {

Result<std::unique_ptr<Device>> OpenCudaDevice(const std::string& name) {
  return Unsupported(StrCat("device '", name, "': this build has no CUDA (CMake found no nvcc); use --device cpu"));
}

std::string CompiledGpuArchitectures() { return ""; }

}  // namespace dsv4
