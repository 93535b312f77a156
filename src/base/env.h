// The environment: docs/env.md lists every variable. No other file reads it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace dsv4 {

// DSV4_CPU_ISA: the largest instruction set that CPU kernels may use; empty: all that the machine has.
inline std::string EnvCpuIsa() {
  const char* value = std::getenv("DSV4_CPU_ISA");
  return value != nullptr ? value : "";
}

// DSV4_FAIL_DEVICE_AFTER=PASSES or PASSES:RANK: passes of the model after which the devices of all ranks, or of one,
// fail as if they were broken, each time that they have been opened: to see what a server does then.
// PASSES:RANK:SECONDS: the rank comes so much too late to that pass instead.
struct DeviceFault {
  int64_t passes = 0;  // 0: never
  int rank = -1;       // -1: all
  double late_s = 0;   // 0: it fails
};
inline DeviceFault EnvFailDeviceAfter() {
  const char* value = std::getenv("DSV4_FAIL_DEVICE_AFTER");
  if (value == nullptr) return {};
  char* end = nullptr;
  DeviceFault fault{.passes = std::strtoll(value, &end, 10)};
  if (*end == ':') fault.rank = static_cast<int>(std::strtol(end + 1, &end, 10));
  if (*end == ':') fault.late_s = std::strtod(end + 1, nullptr);
  return fault;
}

// CUDA_MODULE_LOADING=EAGER, unless it is set: a GPU's kernels are loaded when it is opened. By default CUDA loads one
// when it is launched for the first time, under a lock of the process, and may wait for the GPU then; where that polls
// for what another GPU is yet to be given, nobody goes on. Before the process's first call of CUDA.
inline void LoadKernelsAtOnce() { ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0); }

// DSV4_KERNEL_TIMES: the file that bench/cuda/kernel_times.cc writes the times of kernels to.
inline std::string EnvKernelTimes() {
  const char* value = std::getenv("DSV4_KERNEL_TIMES");
  return value != nullptr ? value : "";
}

// Where the user's programs keep what they remember: XDG_STATE_HOME, else .local/state in HOME; empty: neither is
// known. Relative paths do not count.
inline std::string EnvStateHome() {
  const auto absolute = [](const char* path) { return path != nullptr && *path == '/'; };
  if (const char* state = std::getenv("XDG_STATE_HOME"); absolute(state)) return state;
  const char* home = std::getenv("HOME");
  return absolute(home) ? std::string(home) + "/.local/state" : "";
}

}  // namespace dsv4
