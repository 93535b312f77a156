// Instruction sets of the CPU that this process runs on.
#pragma once

#include <cstdint>
#include <string>

#include "dsv4/status.h"

namespace dsv4 {

// Instruction sets that kernels are compiled for. Each includes the previous ones.
enum class CpuIsa : uint8_t { kGeneric, kAvx2, kAvx512, kAvx512Vnni, kAmx };

// The largest set that kernels may use: DSV4_CPU_ISA (docs/env.md), else no limit.
CpuIsa CpuIsaLimit();

// kInvalidArgument: DSV4_CPU_ISA is not the name of a set. kUnsupported: this machine lacks that set.
Status CheckCpuIsa();

// The "avx2" kernels need AVX2, FMA and F16C (x86-64-v3). False for sets above the limit.
bool CpuHasAvx2();

// The "avx512" kernels also need AVX-512 F, BW, VL and DQ (x86-64-v4 without CD). False for sets above the limit.
bool CpuHasAvx512();

// The "avx512vnni" kernels also need VNNI (8-bit integer dot products). False for sets above the limit.
bool CpuHasAvx512Vnni();

// The "amx" kernels also need AMX tiles of BF16 and AVX-512 BF16, and the operating system's permission, which this
// requests. False for sets above the limit.
bool CpuHasAmx();

// "avx2 fma f16c avx512f ...": the features of this machine that this build knows, for --version.
std::string CpuFeatureList();

}  // namespace dsv4
