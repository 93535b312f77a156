// Measures the read rate of one launch among many, for each kind of load: LDG, cp.async and cp.async.bulk.
#include "bench/cuda/harness.cuh"

namespace dsv4::bench {
namespace {

// Every warp reads its own contiguous part through a ring of `Slots` entries of `Bytes`, filled by cp.async.bulk.
template <int Warps, int Slots, int Bytes>
__global__ void __launch_bounds__(Warps * 32) BulkKernel(const uint8_t* p, int64_t bytes, uint32_t* out) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t full[Warps][Slots];
  AllowNext();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t chunks = bytes / Bytes, workers = static_cast<int64_t>(gridDim.x) * Warps,
                me = static_cast<int64_t>(blockIdx.x) * Warps + warp;
  const int64_t begin = chunks * me / workers, end = chunks * (me + 1) / workers;
  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + warp * Slots * Bytes;
  const uint32_t bars = static_cast<uint32_t>(__cvta_generic_to_shared(full[warp]));
  const auto fetch = [&](int64_t c, int slot) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bars + 8 * slot), "r"(Bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     ring + slot * Bytes),
                 "l"(p + c * Bytes), "r"(Bytes), "r"(bars + 8 * slot)
                 : "memory");
  };
  if (lane == 0) {
    for (int s = 0; s < Slots; ++s) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bars + 8 * s));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int s = 0; s < Slots && begin + s < end; ++s) fetch(begin + s, s);
  }
  __syncwarp();
  WaitForPrevious();
  uint32_t bits = 0;
  int slot = 0, phase = 0;
  for (int64_t c = begin; c < end; ++c) {
    uint32_t done = 0;
    while (!done) {
      asm volatile("{\n.reg .pred q;\nmbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2;\nselp.u32 %0, 1, 0, q;\n}"
                   : "=r"(done)
                   : "r"(bars + 8 * slot), "r"(phase)
                   : "memory");
    }
    const uint4* words = reinterpret_cast<const uint4*>(shared + (warp * Slots + slot) * Bytes);
#pragma unroll
    for (int i = 0; i < Bytes / 16; i += 32) {
      if (i + lane < Bytes / 16) {
        const uint4 v = words[i + lane];
        bits ^= v.x ^ v.y ^ v.z ^ v.w;
      }
    }
    __syncwarp();
    if (lane == 0 && c + Slots < end) fetch(c + Slots, slot);
    if (++slot == Slots) slot = 0, phase ^= 1;
  }
  if (bits == 0x12345678u) *out = bits;
}

// The same with cp.async of 16 bytes per lane: a lane waits only for its own groups.
template <int Warps, int Slots>
__global__ void __launch_bounds__(Warps * 32) AsyncKernel(const uint8_t* p, int64_t bytes, uint32_t* out) {
  extern __shared__ __align__(128) uint8_t shared[];
  AllowNext();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kBytes = 512;
  const int64_t chunks = bytes / kBytes, workers = static_cast<int64_t>(gridDim.x) * Warps,
                me = static_cast<int64_t>(blockIdx.x) * Warps + warp;
  const int64_t begin = chunks * me / workers, end = chunks * (me + 1) / workers;
  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + warp * Slots * kBytes + 16 * lane;
  const auto fetch = [&](int64_t c, int slot) {
    if (c < end)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(ring + slot * kBytes),
                   "l"(p + c * kBytes + 16 * lane)
                   : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int s = 0; s < Slots; ++s) fetch(begin + s, s);
  WaitForPrevious();
  uint32_t bits = 0;
  int slot = 0;
  for (int64_t c = begin; c < end; ++c) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Slots - 1) : "memory");
    const uint4 v = *reinterpret_cast<const uint4*>(shared + (warp * Slots + slot) * kBytes + 16 * lane);
    bits ^= v.x ^ v.y ^ v.z ^ v.w;
    fetch(c + Slots, slot);
    if (++slot == Slots) slot = 0;
  }
  if (bits == 0x12345678u) *out = bits;
}

// Every warp reads its own contiguous part into registers, `Unroll` loads of 512 bytes ahead.
template <int Warps, int Unroll>
__global__ void __launch_bounds__(Warps * 32) RegisterKernel(const uint8_t* p, int64_t bytes, uint32_t* out) {
  AllowNext();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t chunks = bytes / 512, workers = static_cast<int64_t>(gridDim.x) * Warps,
                me = static_cast<int64_t>(blockIdx.x) * Warps + warp;
  const int64_t begin = chunks * me / workers, end = chunks * (me + 1) / workers;
  const uint4* words = reinterpret_cast<const uint4*>(p) + lane;
  uint4 v[Unroll];
#pragma unroll
  for (int u = 0; u < Unroll; ++u) v[u] = begin + u < end ? __ldcs(words + (begin + u) * 32) : make_uint4(0, 0, 0, 0);
  WaitForPrevious();
  uint32_t bits = 0;
  for (int64_t c = begin; c < end; c += Unroll) {
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      bits ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
      v[u] = c + u + Unroll < end ? __ldcs(words + (c + u + Unroll) * 32) : make_uint4(0, 0, 0, 0);
    }
  }
  if (bits == 0x12345678u) *out = bits;
}

void Run() {
  Gpu gpu;
  uint8_t* p = static_cast<uint8_t*>(gpu.Allocate(int64_t{1} << 30));
  FillNormalKernel<<<1024, 256, 0, StreamOf(gpu.ctx())>>>(reinterpret_cast<float*>(p), int64_t{1} << 28, 5, 1.0f);
  uint32_t* out = reinterpret_cast<uint32_t*>(gpu.ctx().scratch.data);
  const int sms = gpu.ctx().gpu.multiprocessors;
  for (const int64_t bytes : {int64_t{589824}, int64_t{1179648}, int64_t{2359296}, int64_t{4718592}, int64_t{9437184},
                              int64_t{18874368}, int64_t{297861120}}) {
    for (const bool overlap : {false, true}) {
      gpu.ctx().overlap = overlap;
      Line line("read");
      line.Add("bytes", bytes).Add("overlap", overlap ? 1 : 0).Add("ldg_best_us", gpu.ReadLimitUs(bytes));
      const int copies = std::min<int>(Gpu::Copies(bytes), static_cast<int>((int64_t{1} << 30) / bytes));
      const auto with = [&](const char* name, void (*kernel)(const uint8_t*, int64_t, uint32_t*), int blocks,
                            int threads, size_t shared) {
        line.Add(name, gpu.MedianUs(
                           copies,
                           [&](const ExecContext& ctx, int i) {
                             Launch(ctx, kernel, dim3(static_cast<unsigned>(blocks)),
                                    dim3(static_cast<unsigned>(threads)), shared, p + i * bytes, bytes, out);
                           },
                           9));
      };
      with("bulk16x3x2304", BulkKernel<16, 3, 2304>, sms, 512, 16 * 3 * 2304);
      with("bulk16x4x1152", BulkKernel<16, 4, 1152>, sms, 512, 16 * 4 * 1152);
      with("bulk16x4x2304", BulkKernel<16, 4, 2304>, sms, 512, 16 * 4 * 2304);
      with("bulk8x4x2304", BulkKernel<8, 4, 2304>, sms, 256, 8 * 4 * 2304);
      with("bulk8x4x2304_2", BulkKernel<8, 4, 2304>, 2 * sms, 256, 8 * 4 * 2304);
      with("async16x8", AsyncKernel<16, 8>, sms, 512, 16 * 8 * 512);
      with("async16x12", AsyncKernel<16, 12>, sms, 512, 16 * 12 * 512);
      with("async8x8_2", AsyncKernel<8, 8>, 2 * sms, 256, 8 * 8 * 512);
      with("reg16x4", RegisterKernel<16, 4>, sms, 512, 0);
      with("reg16x6", RegisterKernel<16, 6>, sms, 512, 0);
      with("reg16x8", RegisterKernel<16, 8>, sms, 512, 0);
      with("reg8x8_2", RegisterKernel<8, 8>, 2 * sms, 256, 0);
      line.Print();
    }
  }
}

}  // namespace
}  // namespace dsv4::bench

int main() { dsv4::bench::Run(); }
