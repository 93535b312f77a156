// Instruction sets of the CPU that this process runs on.
#pragma once

#include <cstdint>
#include <string>

#include "dsv4/status.h"

namespace dsv4 {

// What kernels are compiled for, each more than the one before.
enum class CpuIsa : uint8_t { kGeneric, kAvx2, kAvx512, kAvx512Vnni, kAmx };

// The largest set that kernels may use: DSV4_CPU_ISA (docs/env.md), else the last.
CpuIsa CpuIsaLimit();

// kInvalidArgument when DSV4_CPU_ISA is no name of a set, or one that this machine lacks.
Status CheckCpuIsa();

// AVX2, FMA and F16C together (x86-64-v3): what the "avx2" kernels are compiled for. False beyond the limit.
bool CpuHasAvx2();

// AVX-512 F, BW, VL and DQ besides (x86-64-v4 without CD): what the "avx512" kernels are compiled for. The same.
bool CpuHasAvx512();

// VNNI (8-bit integer dot products) besides: the "avx512vnni" kernels. The same.
bool CpuHasAvx512Vnni();

// AMX tiles of BF16 and AVX-512 BF16 besides, and the operating system's leave to use them, which this asks for: the
// "amx" kernels. The same.
bool CpuHasAmx();

// "avx2 fma f16c avx512f ...": those of the machine that are known to this build, for --version.
std::string CpuFeatureList();

}  // namespace dsv4
