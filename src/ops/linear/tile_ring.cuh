// A warp's ring of chunks of weights in shared memory, filled by bulk copies (cp.async.bulk, mbarrier), and the few
// instructions of thread block clusters that matrix products use. sm_90 and later.
#pragma once

#include <cstdint>

namespace dsv4 {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

class TileRing {
 public:
  __device__ __forceinline__ TileRing(uint64_t* barriers, uint8_t* memory, int slots, int slot_bytes)
      : barriers_(SharedAddress(barriers)), address_(SharedAddress(memory)), memory_(memory), slots_(slots), slot_bytes_(slot_bytes) {}

  // One lane.
  __device__ __forceinline__ void Init() {
    for (int s = 0; s < slots_; ++s) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + 8 * s) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }

  // One lane, when all lanes have read what the slot held: `bytes` (a multiple of 16) from 16-byte aligned weights.
  __device__ __forceinline__ void Fetch(int slot, const uint8_t* from, int bytes) {
    const uint32_t barrier = barriers_ + 8 * slot;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address_ + slot * slot_bytes_),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
  }

  // All lanes. `phase`: 0 the first time round the ring, then 1, 0, ...
  __device__ __forceinline__ void Wait(int slot, uint32_t phase) {
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred q;\nmbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2;\nselp.u32 %0, 1, 0, q;\n}"
          : "=r"(done)
          : "r"(barriers_ + 8 * slot), "r"(phase)
          : "memory");
    } while (!done);
  }

  __device__ __forceinline__ const uint8_t* Slot(int slot) const { return memory_ + slot * slot_bytes_; }

 private:
  uint32_t barriers_, address_;
  uint8_t* memory_;
  int slots_, slot_bytes_;
};

// Barrier of a cluster in two halves; what a thread wrote before it arrived, others see after they waited.
__device__ __forceinline__ void ClusterArrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void ClusterWait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address of the same variable in block `rank` of the cluster.
__device__ __forceinline__ uint32_t ClusterAddress(const void* p, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(SharedAddress(p)), "r"(rank));
  return address;
}
__device__ __forceinline__ void StoreCluster(uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

}  // namespace dsv4
