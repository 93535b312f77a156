// Records the times of a program's kernels and copies without serialising them, so that ranks that poll each other do
// not hang.
//
//   CUDA_INJECTION64_PATH=.../libkernel_times.so DSV4_KERNEL_TIMES=FILE dsv4 bench ...
//
// The CUDA driver loads the library and calls InitializeInjection. CUPTI's activity records are written to FILE, one
// per line: GPU, begin and end in nanoseconds, name. bench/kernel_times.py makes a table of them. Recording slows a
// step of many small kernels by a few percent.
#include <cupti.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "base/env.h"

namespace {

constexpr size_t kBufferBytes = 8 << 20;

std::mutex mutex;
FILE* out = nullptr;  // guarded by the mutex

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // no limit
}

void CUPTIAPI WriteBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (out != nullptr && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      std::fprintf(out, "%u %" PRIu64 " %" PRIu64 " %s\n", kernel.deviceId, kernel.start, kernel.end, kernel.name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      std::fprintf(out, "%u %" PRIu64 " %" PRIu64 " memcpy%d\n", copy.deviceId, copy.start, copy.end, copy.copyKind);
    }
  }
  std::free(buffer);
}

void Close() {
  cuptiActivityFlushAll(1);
  const std::lock_guard lock(mutex);
  if (out != nullptr && std::fclose(out) != 0) std::perror("DSV4_KERNEL_TIMES");
  out = nullptr;
}

}  // namespace

extern "C" int InitializeInjection() {
  out = std::fopen(dsv4::EnvKernelTimes().c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "kernel_times: DSV4_KERNEL_TIMES must name a file that can be written\n");
    return 0;
  }
  cuptiActivityRegisterCallbacks(GiveBuffer, WriteBuffer);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  std::atexit(Close);
  return 1;
}
