// Hopper's warpgroup matrix instruction, named barriers and registers of warpgroups, as thin wrappers over PTX (PTX ISA
// 9.0, section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"). sm_90a only.
#pragma once

#include <cstdint>

namespace dsv4::sm90 {

__device__ __forceinline__ void NamedBarrier(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// True in all threads if `value` is true in any of them.
__device__ __forceinline__ bool NamedBarrierOr(int id, int threads, bool value) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(value)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

template <int kRegisters>
__device__ __forceinline__ void MoreRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void FewerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- wgmma ----

__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Descriptor of a K-major operand in shared memory, rows of 64 BF16 with the 128-byte swizzle: the 16-byte chunk c of
// row r is at chunk c ^ (r % 8); eight rows are 1024 bytes, 1024-byte aligned. 16 columns further is + 2.
__device__ __forceinline__ uint64_t SwizzledRows(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}

// d[64, kN] = a[64, 16] b[16, kN] + (add ? d : 0). For each warp's 16 rows, lane L = 4 g + t holds a as in mma.m16n8k16
// and d[4 j + 2 r + i] = D[g + 8 r, 8 j + 2 t + i]. a and b are BF16, or FP16.
template <int kN, bool kHalf = false>
struct Wgmma;

// Operand lists: registers %0 .. %15 and so on, "+f" of 16 elements.
#define DSV4_D0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define DSV4_D1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DSV4_D2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DSV4_D3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DSV4_D4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define DSV4_D5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DSV4_D6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define DSV4_D7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define DSV4_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4_F16(i) DSV4_F4(i), DSV4_F4(i + 4), DSV4_F4(i + 8), DSV4_F4(i + 12)
#define DSV4_LIST1 DSV4_D0
#define DSV4_LIST2 DSV4_LIST1 ", " DSV4_D1
#define DSV4_LIST3 DSV4_LIST2 ", " DSV4_D2
#define DSV4_LIST4 DSV4_LIST3 ", " DSV4_D3
#define DSV4_LIST5 DSV4_LIST4 ", " DSV4_D4
#define DSV4_LIST6 DSV4_LIST5 ", " DSV4_D5
#define DSV4_LIST7 DSV4_LIST6 ", " DSV4_D6
#define DSV4_LIST8 DSV4_LIST7 ", " DSV4_D7
#define DSV4_OUT1 DSV4_F16(0)
#define DSV4_OUT2 DSV4_OUT1, DSV4_F16(16)
#define DSV4_OUT3 DSV4_OUT2, DSV4_F16(32)
#define DSV4_OUT4 DSV4_OUT3, DSV4_F16(48)
#define DSV4_OUT5 DSV4_OUT4, DSV4_F16(64)
#define DSV4_OUT6 DSV4_OUT5, DSV4_F16(80)
#define DSV4_OUT7 DSV4_OUT6, DSV4_F16(96)
#define DSV4_OUT8 DSV4_OUT7, DSV4_F16(112)

#define DSV4_WGMMA_OF(HALF, TYPE, N, BLOCKS, A0, A1, A2, A3, B, ADD)                                      \
  template <>                                                                                             \
  struct Wgmma<N, HALF> {                                                                                 \
    static __device__ __forceinline__ void Run(float* d, const uint32_t* a, uint64_t b, uint32_t add) {   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                              \
                   ", 0;\n"                                                                               \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" DSV4_LIST##BLOCKS \
                   "}, "                                                                                  \
                   "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}"                    \
                   : DSV4_OUT##BLOCKS                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                       \
    }                                                                                                     \
  };
#define DSV4_WGMMA(...)                     \
  DSV4_WGMMA_OF(false, "bf16", __VA_ARGS__) \
  DSV4_WGMMA_OF(true, "f16", __VA_ARGS__)
DSV4_WGMMA(32, 1, 16, 17, 18, 19, 20, 21)
DSV4_WGMMA(64, 2, 32, 33, 34, 35, 36, 37)
DSV4_WGMMA(96, 3, 48, 49, 50, 51, 52, 53)
DSV4_WGMMA(128, 4, 64, 65, 66, 67, 68, 69)
DSV4_WGMMA(160, 5, 80, 81, 82, 83, 84, 85)
DSV4_WGMMA(192, 6, 96, 97, 98, 99, 100, 101)
DSV4_WGMMA(224, 7, 112, 113, 114, 115, 116, 117)
DSV4_WGMMA(256, 8, 128, 129, 130, 131, 132, 133)

#undef DSV4_WGMMA
#undef DSV4_WGMMA_OF
#undef DSV4_F4
#undef DSV4_F16
#undef DSV4_D0
#undef DSV4_D1
#undef DSV4_D2
#undef DSV4_D3
#undef DSV4_D4
#undef DSV4_D5
#undef DSV4_D6
#undef DSV4_D7
#undef DSV4_LIST1
#undef DSV4_OUT1
#undef DSV4_LIST2
#undef DSV4_OUT2
#undef DSV4_LIST3
#undef DSV4_OUT3
#undef DSV4_LIST4
#undef DSV4_OUT4
#undef DSV4_LIST5
#undef DSV4_OUT5
#undef DSV4_LIST6
#undef DSV4_OUT6
#undef DSV4_LIST7
#undef DSV4_OUT7
#undef DSV4_LIST8
#undef DSV4_OUT8

}  // namespace dsv4::sm90
