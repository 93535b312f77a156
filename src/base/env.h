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

}  // namespace dsv4
