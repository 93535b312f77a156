// mbarriers, the barrier of a cluster and bulk copies, as thin wrappers over PTX (PTX ISA 9.0: "mbarrier",
// "barrier.cluster", "cp.async.bulk", "elect.sync"). Barriers are addresses of shared memory. sm_90 and later.
#pragma once

#include <cstdint>

namespace dsv4 {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// True for one lane of a converged warp.
__device__ __forceinline__ bool ElectLane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

// ---- mbarriers ----

// Call by one thread. After BarrierInitFence the barrier is visible to bulk copies; after ClusterArriveRelaxed and
// ClusterWait also to the cluster.
__device__ __forceinline__ void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One arrival: this phase ends when `bytes` have arrived.
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ bool BarrierTryWait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred q;\nAGAIN%=:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 q, [%0], %1;\n"
      "@!q bra AGAIN%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// The same for data that other blocks of the cluster send.
__device__ __forceinline__ void BarrierWaitCluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred q;\nAGAIN%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 q, [%0], %1;\n"
      "@!q bra AGAIN%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Traps if the barrier does not complete: that is a bug, and an error is better than a hung GPU.
__device__ __forceinline__ void BarrierWaitOrTrap(uint32_t barrier, uint32_t parity) {
  for (uint32_t tries = 0; !BarrierTryWait(barrier, parity); ++tries) {
    if (tries > (1u << 24)) __trap();
  }
}

// ---- the barrier of the cluster, by all threads of all its blocks ----

__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Orders only what BarrierInitFence orders, so it does not wait for earlier stores or loads.
__device__ __forceinline__ void ClusterArriveRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// ---- bulk copies: 16-byte aligned, a multiple of 16 bytes ----

// From global memory, counted at `barrier`. If threads of this kernel wrote the source, they need a fence.proxy.async
// before this.
__device__ __forceinline__ void BulkLoad(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// With an L2 policy: data that a step reads once is evicted before data that is read again (activations, tables, code).
// createpolicy.fractional returns these values.
constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictNormal = 0x1000000000000000;
__device__ __forceinline__ void BulkLoad(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void BulkStore(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void BulkCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all groups of bulk stores except the last kPending have read their shared memory. For the calling thread.
template <int kPending>
__device__ __forceinline__ void BulkWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until the groups are complete.
__device__ __forceinline__ void BulkWait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Orders this thread's writes to shared memory before later asynchronous reads of it.
__device__ __forceinline__ void FenceAsyncShared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace dsv4
