#include "device/cpu_features.h"

namespace dsv4 {

#if defined(__x86_64__)

bool CpuHasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

std::string CpuFeatureList() {
  std::string list;
  const auto add = [&list](bool has, const char* name) {
    if (!has) return;
    if (!list.empty()) list += ' ';
    list += name;
  };
  add(__builtin_cpu_supports("sse4.2"), "sse4.2");
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("f16c"), "f16c");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  add(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
  return list;
}

#else

bool CpuHasAvx2() { return false; }
std::string CpuFeatureList() { return "generic"; }

#endif

}  // namespace dsv4
