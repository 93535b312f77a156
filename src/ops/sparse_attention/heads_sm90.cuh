// Parts of the kernels in which the rows of wgmma's results are 64 heads.
#pragma once

#include "ops/sparse_attention/gather_sm90.cuh"

namespace dsv4::attend {

constexpr int kHalf = kTile / 2;  // rows of a tile that are passed on together, and scored by one warpgroup

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d[64, 128] = A B + (add ? d : 0): A K-major, B N-major, its blocks of 64 channels kBlockBytes apart.
__device__ __forceinline__ void ProductHalf(float* d, uint64_t a, uint64_t b, uint32_t add) {
#define DSV4_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4_F32(i)                                                                                               \
  DSV4_F4(i), DSV4_F4(i + 4), DSV4_F4(i + 8), DSV4_F4(i + 12), DSV4_F4(i + 16), DSV4_F4(i + 20), DSV4_F4(i + 24), \
      DSV4_F4(i + 28)
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, "
      "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
      "%50, %51, %52, %53, "
      "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 1;\n}"
      : DSV4_F32(0), DSV4_F32(32)
      : "l"(a), "l"(b), "r"(add));
#undef DSV4_F4
#undef DSV4_F32
}

// Stores four 8 x 8 blocks of FP16 in mma's layout to the rows whose addresses lanes 8 m .. 8 m + 7 hold for block m.
__device__ __forceinline__ void StoreMatrices(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z),
               "r"(w)
               : "memory");
}

// Starts S [64 heads, 32 rows] of one tile for one warpgroup; does not wait.
__device__ __forceinline__ void IssueHeadScores(float* s, uint32_t rows, uint64_t queries) {
  asm volatile("" : "+l"(queries));  // keeps the compiler from holding 32 descriptors across tiles
  const uint64_t k_rows = sm90::SwizzledRows(rows);
  sm90::WgmmaFence();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    Product<32>::Run<0>(s, queries + k / 4 * (kTile * 128 / 16) + k % 4 * 2,
                        k_rows + k / 4 * (kBlockBytes / 16) + k % 4 * 2, k > 0);
  }
  sm90::WgmmaCommit();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace dsv4::attend
