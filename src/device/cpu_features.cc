#include "device/cpu_features.h"

#include <array>
#include <optional>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "base/env.h"
#include "base/str.h"

namespace dsv4 {

namespace {

constexpr std::array<std::string_view, 5> kIsaNames = {"generic", "avx2", "avx512", "avx512vnni", "amx"};
constexpr auto kLargestIsa = static_cast<CpuIsa>(kIsaNames.size() - 1);

std::optional<CpuIsa> ParseIsa(std::string_view name) {
  for (size_t i = 0; i < kIsaNames.size(); ++i) {
    if (name == kIsaNames[i]) return static_cast<CpuIsa>(i);
  }
  return std::nullopt;
}

}  // namespace

CpuIsa CpuIsaLimit() {
  static const CpuIsa limit = ParseIsa(EnvCpuIsa()).value_or(kLargestIsa);
  return limit;
}

Status CheckCpuIsa() {
  const std::string name = EnvCpuIsa();
  if (name.empty()) return {};
  const std::optional<CpuIsa> isa = ParseIsa(name);
  if (!isa)
    return InvalidArgument(StrCat("DSV4_CPU_ISA is '", name, "'; accepted: generic, avx2, avx512, avx512vnni, amx"));
  const bool lacks = (*isa >= CpuIsa::kAvx2 && !CpuHasAvx2()) || (*isa >= CpuIsa::kAvx512 && !CpuHasAvx512()) ||
                     (*isa >= CpuIsa::kAvx512Vnni && !CpuHasAvx512Vnni()) || (*isa >= CpuIsa::kAmx && !CpuHasAmx());
  if (lacks) {
    return Unsupported(StrCat("DSV4_CPU_ISA is '", name, "', which this CPU lacks (it has: ", CpuFeatureList(), ")"));
  }
  return {};
}

#if defined(__x86_64__)

namespace {

// F16C: half-float conversions. clang's __builtin_cpu_supports does not know this name. (It needs the same support of
// the operating system as AVX, and avx2 includes that.)
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

// Linux withholds the 8 KiB of tile registers until a process requests them (kernel documentation, arch/x86/xstate).
bool MayUseTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

bool CpuHasAvx2() {
  return CpuIsaLimit() >= CpuIsa::kAvx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool CpuHasAvx512() {
  return CpuHasAvx2() && CpuIsaLimit() >= CpuIsa::kAvx512 && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool CpuHasAvx512Vnni() {
  return CpuHasAvx512() && CpuIsaLimit() >= CpuIsa::kAvx512Vnni && __builtin_cpu_supports("avx512vnni");
}

bool CpuHasAmx() {
#ifdef __linux__
  static const bool has = CpuIsaLimit() >= CpuIsa::kAmx && CpuHasAvx512Vnni() && HasAmxTiles() && MayUseTiles();
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
