// The build without CUDA.
#include "base/str.h"
#include "device/cuda.h"
#include "device/exchange.h"

namespace dsv4 {

Result<std::unique_ptr<Device>> OpenCudaDevice(const std::string& name) {
  return Unsupported(StrCat("device '", name, "': this build has no CUDA (CMake found no nvcc); use --device cpu"));
}

Result<std::unique_ptr<Exchange>> OpenGpuExchange(std::span<const ExchangeGpu>, ExchangeTransport,
                                                  const ExchangeOptions&) {
  return Unsupported("several GPUs: this build has no CUDA (CMake found no nvcc); use --device cpu");
}

void AdvanceExchanges(const ExecContext&, int64_t) {}

std::unique_ptr<CopyQueue> OpenCudaCopyQueue(Device&) { return nullptr; }

std::string CompiledGpuArchitectures() { return ""; }

}  // namespace dsv4
