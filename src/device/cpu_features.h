// Instruction sets of the CPU that this process runs on.
#pragma once

#include <string>

namespace dsv4 {

// AVX2, FMA and F16C together (x86-64-v3): what the "avx2" kernels are compiled for.
bool CpuHasAvx2();

// AVX-512 F, BW, VL and DQ besides (x86-64-v4 without CD): what the "avx512" kernels are compiled for.
bool CpuHasAvx512();

// VNNI (8-bit integer dot products) besides: the "avx512vnni" kernels.
bool CpuHasAvx512Vnni();

// AMX tiles of BF16 and AVX-512 BF16 besides, and the operating system's leave to use them, which this asks for: the "amx"
// kernels.
bool CpuHasAmx();

// "avx2 fma f16c avx512f ...": those known to this build, for --version.
std::string CpuFeatureList();

}  // namespace dsv4
