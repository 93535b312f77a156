// The environment: docs/env.md lists every variable. No other file reads it.
#pragma once

#include <cstdlib>
#include <string>

namespace dsv4 {

// DSV4_CPU_ISA: the largest instruction set that CPU kernels may use. Empty: no limit.
inline std::string EnvCpuIsa() {
  const char* value = std::getenv("DSV4_CPU_ISA");
  return value != nullptr ? value : "";
}

// DSV4_FAIL_DEVICE_AFTER: which ranks' devices fail, and when, for tests (engine/setup/device_fault.h). Empty: never.
inline std::string EnvFailDeviceAfter() {
  const char* value = std::getenv("DSV4_FAIL_DEVICE_AFTER");
  return value != nullptr ? value : "";
}

// Sets CUDA_MODULE_LOADING=EAGER unless it is set, so that opening a GPU loads all its kernels. Requires: called before
// the process's first CUDA call. By default CUDA loads a kernel at its first launch, under a lock of the process, and
// may then wait for the GPU. If that GPU polls for data that another GPU has not received yet, both hang.
inline void LoadKernelsAtOnce() { ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0); }

// DSV4_KERNEL_TIMES: the output file of bench/cuda/kernel_times.cc.
inline std::string EnvKernelTimes() {
  const char* value = std::getenv("DSV4_KERNEL_TIMES");
  return value != nullptr ? value : "";
}

// sd_notify's variables (service_manager.cc). Empty: not set.
inline std::string EnvNotifySocket() {
  const char* value = std::getenv("NOTIFY_SOCKET");
  return value != nullptr ? value : "";
}
inline std::string EnvWatchdogUsec() {
  const char* value = std::getenv("WATCHDOG_USEC");
  return value != nullptr ? value : "";
}
inline std::string EnvWatchdogPid() {
  const char* value = std::getenv("WATCHDOG_PID");
  return value != nullptr ? value : "";
}

// The folder for the state of the user's programs: XDG_STATE_HOME, else .local/state in HOME. Empty: neither is set.
// Relative paths are ignored.
inline std::string EnvStateHome() {
  const auto absolute = [](const char* path) { return path != nullptr && *path == '/'; };
  if (const char* state = std::getenv("XDG_STATE_HOME"); absolute(state)) return state;
  const char* home = std::getenv("HOME");
  return absolute(home) ? std::string(home) + "/.local/state" : "";
}

}  // namespace dsv4
