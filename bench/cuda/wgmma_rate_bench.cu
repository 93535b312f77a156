// Measures the highest rate of an SM with NVFP4 weights in prefill: wgmma with A from registers, alone and while A is
// decoded from codes, for each width N. Nothing is read from memory.
#include "bench/cuda/harness.cuh"
#include "ops/gemm_sm90.cuh"
#include "ops/wgmma.cuh"

namespace dsv4::bench {
namespace {

constexpr int kSteps = 4096;  // of 64 columns

// One or more warpgroups, each with its own 64 rows and all kN columns: four products of 16 columns per step. A has two
// buffers: one is decoded while the other is multiplied.
template <int kN, bool kDecodes>
__global__ void __launch_bounds__(kN >= 192 ? 256 : 384) RateKernel(uint32_t seed, float* out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t b[];
  for (int i = threadIdx.x; i < kN * 128 / 4; i += blockDim.x) reinterpret_cast<uint32_t*>(b)[i] = 0x3C003C00u;
  FenceAsyncShared();
  __syncthreads();
  const uint64_t rows = sm90::SwizzledRows(SharedAddress(b));
  float d[kN / 2] = {};
  uint32_t a[2][16], word = seed + threadIdx.x;
#pragma unroll
  for (int i = 0; i < 32; ++i) a[i / 16][i % 16] = 0x3C003C00u;
  sm90::WgmmaFence();
  for (int step = 0; step < kSteps; step += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kDecodes) {
        const uint32_t scale = sm90::Nvfp4ScaleHalf(0xA8u + (word & 7u));
        // A lane has 16 columns of row g and 16 of row g + 8, two words each.
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const uint32_t next = word * 5 + 0x9E3779B9u;
          sm90::DecodeFp4RowHalf(word, next, scale, a[half] + row);
          word = next * 5 + 0x9E3779B9u;
        }
      }
      sm90::WgmmaFence();
#pragma unroll
      for (int s = 0; s < 4; ++s)
        sm90::Wgmma<kN, true>::Run(d, a[half] + 4 * s, rows + static_cast<uint64_t>(2 * s), 1);
      sm90::WgmmaCommit();
      sm90::WgmmaWait<1>();
    }
  }
  sm90::WgmmaWait<0>();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sum += d[i];
  if (sum == 0.12345f) *out = sum;
#endif
}

template <int kN, bool kDecodes>
void Rate(Gpu& gpu, int warpgroups) {
  float* out = static_cast<float*>(gpu.Allocate(4));
  const double us = gpu.MedianUs(1, [&](const ExecContext& ctx, int) {
    Launch(ctx, RateKernel<kN, kDecodes>, dim3(static_cast<unsigned>(ctx.gpu.multiprocessors)),
           dim3(static_cast<unsigned>(128 * warpgroups)), kN * 128, 7u, out);
  });
  const double flop = 2.0 * 64 * kN * 64 * kSteps * warpgroups * gpu.ctx().gpu.multiprocessors;
  Line("wgmma_rate")
      .Add("N", kN)
      .Add("warpgroups", warpgroups)
      .Add("decodes", kDecodes ? "NVFP4" : "no")
      .Add("us", us)
      .Add("tflops", flop / us / 1e6)
      .Print();
  cudaFree(out);
}

template <int kN>
void Rates(Gpu& gpu) {
  for (const int warpgroups : {1, 2, 3}) {
    if (kN >= 192 && warpgroups == 3) continue;  // needs more registers than an SM has
    Rate<kN, false>(gpu, warpgroups);
    Rate<kN, true>(gpu, warpgroups);
  }
}

}  // namespace
}  // namespace dsv4::bench

int main() {
  dsv4::bench::Gpu gpu;
  dsv4::bench::Rates<64>(gpu);
  dsv4::bench::Rates<128>(gpu);
  dsv4::bench::Rates<192>(gpu);
  dsv4::bench::Rates<256>(gpu);
}
