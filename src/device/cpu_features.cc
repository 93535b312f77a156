#include "device/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace dsv4 {

#if defined(__x86_64__)

namespace {

// Half-float conversions: a name that clang's __builtin_cpu_supports does not know. (The operating system's part of it
// is AVX's, which avx2 includes.)
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

#ifdef __linux__
bool HasAmxTiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kAvx512Bf16 = 1u << 5;
  if ((edx & kBf16) == 0 || (edx & kTile) == 0) return false;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvx512Bf16) != 0;
}

// Linux keeps the 8 KiB of tile registers from a process until it asks (kernel documentation, arch/x86/xstate).
bool MayUseTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

bool CpuHasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c(); }

bool CpuHasAvx512() {
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool CpuHasAvx512Vnni() { return CpuHasAvx512() && __builtin_cpu_supports("avx512vnni"); }

bool CpuHasAmx() {
#ifdef __linux__
  static const bool has = CpuHasAvx512Vnni() && HasAmxTiles() && MayUseTiles();
  return has;
#else
  return false;
#endif
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
  add(HasF16c(), "f16c");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  add(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
  add(CpuHasAmx(), "amx");
  return list;
}

#else

bool CpuHasAvx2() { return false; }
bool CpuHasAvx512() { return false; }
bool CpuHasAvx512Vnni() { return false; }
bool CpuHasAmx() { return false; }
std::string CpuFeatureList() { return "generic"; }

#endif

}  // namespace dsv4
