// The kernels of an op by name, so that a test runs each of them independently of the dispatcher.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "device/cpu_features.h"
#include "device/exec_context.h"
#include "ops/cpu_rows.h"
#include "support/devices.h"

#define DSV4_DECLARE_KERNELS(NAME, ARGS) \
  namespace dsv4 {                       \
  DSV4_DECLARE_CPU(NAME, ARGS)           \
  }
// linear and experts, which have kernels for more instruction sets.
#define DSV4_DECLARE_PRODUCT_KERNELS(NAME, ARGS) \
  namespace dsv4 {                               \
  DSV4_DECLARE_CPU_PRODUCT(NAME, ARGS)           \
  }

#if defined(__x86_64__)
#define DSV4_KERNELS(NAME)                                                       \
  {                                                                              \
    {"generic", generic::NAME}, {"avx2", avx2::NAME}, { "avx512", avx512::NAME } \
  }
#define DSV4_PRODUCT_KERNELS(NAME)                                                                                  \
  {                                                                                                                 \
    {"generic", generic::NAME}, {"avx2", avx2::NAME}, {"avx512", avx512::NAME}, {"avx512vnni", avx512vnni::NAME}, { \
      "amx", amx::NAME                                                                                              \
    }                                                                                                               \
  }
#else
#define DSV4_KERNELS(NAME)       \
  {                              \
    { "generic", generic::NAME } \
  }
#define DSV4_PRODUCT_KERNELS(NAME) DSV4_KERNELS(NAME)
#endif

namespace dsv4::test {

template <typename Args>
struct Kernel {
  std::string name;
  void (*run)(const ExecContext& ctx, const Args& args);
};

// Calls fn(run), or fn(run, tiles), for every kernel that this machine can run. `tiles`: the kernel multiplies on AMX
// tiles, which have another order of summation (ops/linear/amx/tile_rows.h).
template <typename Args, typename Fn>
void ForEachKernel(const std::vector<Kernel<Args>>& kernels, const Fn& fn) {
  for (const Kernel<Args>& kernel : kernels) {
    if (kernel.name == "avx2" && !CpuHasAvx2()) continue;
    if (kernel.name == "avx512" && !CpuHasAvx512()) continue;
    if (kernel.name == "avx512vnni" && !CpuHasAvx512Vnni()) continue;
    if (kernel.name == "amx" && !CpuHasAmx()) continue;
    SCOPED_TRACE(kernel.name);
    if constexpr (std::is_invocable_v<Fn, decltype(kernel.run), bool>) {
      fn(kernel.run, /*tiles=*/kernel.name == "amx");
    } else {
      fn(kernel.run);
    }
  }
}

// The same for a case that runs on every device (support/devices.h): on the GPU `on_gpu` is the one kernel.
template <typename Args, typename Fn>
void ForEachKernel(On on, const std::vector<Kernel<Args>>& kernels, OpFn<Args> on_gpu, const Fn& fn) {
  if (on == On::kGpu) {
    fn(on_gpu);
  } else {
    ForEachKernel(kernels, fn);
  }
}

inline ExecContext Reference() { return {.pool = nullptr, .reference_ops = true}; }

// No pool, and pools of 1, 2 and 4 threads.
inline std::vector<ExecContext> ThreadCounts() {
  static ThreadPool one(1), two(2), four(4);
  return {{}, {.pool = &one}, {.pool = &two}, {.pool = &four}};
}
inline ExecContext TwoThreads() { return ThreadCounts()[2]; }

}  // namespace dsv4::test
