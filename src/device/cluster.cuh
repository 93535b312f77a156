// Messages between the blocks of a cluster, without barriers of the whole cluster. A message is a store into another
// block's shared memory that counts its bytes down on an mbarrier there (st.async), so the receiver polls local memory.
// Requires: a block does not end before every message to it has arrived. It does not send into memory that the owner
// may still read. A sequence of exchanges in which every block waits for every other block meets both requirements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/barrier.cuh"

namespace dsv4::gpu {

// An mbarrier of the block's shared memory.
struct ClusterBarrier {
  uint64_t word;

  // Call by one thread. Then call BarrierInitFence and a cluster barrier before the first message.
  __device__ void Init(int arrivals) { BarrierInit(SharedAddress(&word), arrivals); }
  // One arrival: this phase ends when `bytes` have arrived.
  __device__ void Expect(uint32_t bytes) { BarrierExpect(SharedAddress(&word), bytes); }
  // The same on the barrier of block `rank`.
  __device__ void ExpectAt(int rank, uint32_t bytes) {
    asm volatile(
        "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
        "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [at], %2;\n}" ::"r"(SharedAddress(&word)),
        "r"(rank), "r"(bytes)
        : "memory");
  }
  __device__ void Wait(uint32_t parity) { BarrierWaitCluster(SharedAddress(&word), parity); }
};

// The same shared address in block `rank` of the cluster.
__device__ __forceinline__ uint32_t ClusterAddress(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// Counts 16 bytes at `barrier`, which is in the same block as `address`.
__device__ __forceinline__ void StoreToCluster(uint32_t address, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}

// Writes 16 bytes to `to` in block `rank`, counted on that block's `barrier`.
__device__ __forceinline__ void Send(const void* to, uint4 message, ClusterBarrier& barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 at, bar;\nmapa.shared::cluster.u32 at, %0, %6;\nmapa.shared::cluster.u32 bar, %1, %6;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [at], {%2, %3, %4, %5}, [bar];\n}" ::"r"(
          SharedAddress(to)),
      "r"(SharedAddress(&barrier.word)), "r"(message.x), "r"(message.y), "r"(message.z), "r"(message.w), "r"(rank)
      : "memory");
}

__device__ __forceinline__ uint4 Message(uint64_t a, uint64_t b) {
  return make_uint4(static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b),
                    static_cast<uint32_t>(b >> 32));
}
__device__ __forceinline__ uint64_t First(uint4 m) { return static_cast<uint64_t>(m.y) << 32 | m.x; }
__device__ __forceinline__ uint64_t Second(uint4 m) { return static_cast<uint64_t>(m.w) << 32 | m.z; }

// Integer sums over a warp; every lane gets the result.
__device__ __forceinline__ uint32_t WarpAdd(uint32_t x) { return __reduce_add_sync(0xFFFFFFFFu, x); }
__device__ __forceinline__ uint64_t WarpAdd(uint64_t x) {  // sums of 27 bits over 32 lanes fit in 32 bits
  constexpr uint32_t kPart = (1u << 27) - 1;
  const uint32_t low = WarpAdd(static_cast<uint32_t>(x) & kPart),
                 middle = WarpAdd(static_cast<uint32_t>(x >> 27) & kPart),
                 high = WarpAdd(static_cast<uint32_t>(x >> 54));
  return low + (static_cast<uint64_t>(middle) << 27) + (static_cast<uint64_t>(high) << 54);
}

// The sum over this lane and the lower ones.
template <typename T>
__device__ __forceinline__ T WarpPrefix(T x) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const T other = __shfl_up_sync(0xFFFFFFFFu, x, o);
    if (lane >= o) x += other;
  }
  return x;
}

}  // namespace dsv4::gpu
