// How tile_linear_cuda.cu moves data: a warp's ring of chunks of weights in shared memory, filled by bulk copies, and stores
// into another block of the cluster that count bytes at a barrier there. sm_90 and later.
#pragma once

#include <cstdint>

namespace dsv4 {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// True for one lane of a converged warp.
__device__ __forceinline__ bool ElectLane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

// One thread; visible to the cluster after ClusterArriveRelaxed / ClusterWait, to bulk copies at once.
__device__ __forceinline__ void InitBarrier(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void FenceBarrierInit() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void ExpectBytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void WaitBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred q;\nAGAIN%=:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 q, [%0], %1;\n@!q bra AGAIN%=;\n}" ::"r"(barrier), "r"(parity)
      : "memory");
}
__device__ __forceinline__ void WaitClusterBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred q;\nAGAIN%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%0], %1;\n@!q bra AGAIN%=;\n}" ::"r"(barrier), "r"(parity)
      : "memory");
}

// `bytes`, a multiple of 16, from 16-byte aligned memory that no kernel writes. The policy of L2: what is read once a step
// leaves it before what is read again (activations, tables, code). The values are what createpolicy.fractional makes.
constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictNormal = 0x1000000000000000;
__device__ __forceinline__ void CopyBulk(uint32_t to, const uint8_t* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier), "l"(policy)
               : "memory");
}
// Before a slot is copied to again: `loaded`, everything a lane loaded from it (as it is, decoded, or any of its bits), is in
// registers. A load whose number nothing has used yet may still be on its way, and copies do not wait for it: neither
// __syncwarp nor an arrival makes the hardware wait for what loads bring. The vote needs the numbers; its answer changes nothing.
__device__ __forceinline__ void WaitForLoads(uint32_t loaded) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (__any_sync(0xFFFFFFFFu, loaded == 0x7F4A5C31u)) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Clusters. Arriving orders nothing but what FenceBarrierInit orders.
__device__ __forceinline__ void ClusterArriveRelaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void ClusterWait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The same shared address in block `rank` of the cluster.
__device__ __forceinline__ uint32_t ClusterAddress(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// Counts 16 bytes at `barrier`, which lies in the same block as `address`.
__device__ __forceinline__ void StoreToCluster(uint32_t address, float4 v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
               : "memory");
}

}  // namespace dsv4
