// The environment: docs/env.md lists every variable. No other file reads it.
#pragma once

#include <cstdlib>
#include <string>

namespace dsv4 {

// DSV4_CPU_ISA: the largest instruction set that CPU kernels may use; empty: all that the machine has.
inline std::string EnvCpuIsa() {
  const char* value = std::getenv("DSV4_CPU_ISA");
  return value != nullptr ? value : "";
}

// DSV4_FAIL_DEVICE_AFTER: when which ranks' devices fail, for tests (engine/setup/device_fault.h); empty: never.
inline std::string EnvFailDeviceAfter() {
  const char* value = std::getenv("DSV4_FAIL_DEVICE_AFTER");
  return value != nullptr ? value : "";
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
