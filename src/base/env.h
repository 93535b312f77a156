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

// DSV4_FAIL_DEVICE_AFTER: passes of the model after which a device fails, as if it were broken, each time that it has been
// opened: to see what a server does then. 0: never.
inline int64_t EnvFailDeviceAfter() {
  const char* value = std::getenv("DSV4_FAIL_DEVICE_AFTER");
  return value != nullptr ? std::strtoll(value, nullptr, 10) : 0;
}

}  // namespace dsv4
