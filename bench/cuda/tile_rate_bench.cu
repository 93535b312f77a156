// Measures the time of a packed tile in a sub-core if its bytes are in shared memory: loads, decoding
// (ops/tile_mma.cuh) and products of one token (ops/linear/tile/one_token.cuh). Runs with 1 to 8 warps per sub-core and
// without some of these parts. A tile is 16 x 64 weights, 576 bytes of NVFP4. At 100 cycles of a sub-core per tile (25
// cycles of an SM), 132 SMs of 1.8 GHz consume 5.5 TB/s.
//
//   tile_rate_bench
#include <cstdint>
#include <vector>

#include "bench/cuda/harness.cuh"
#include "ops/linear/tile/one_token.cuh"

namespace dsv4::bench {
namespace {

constexpr int kRounds = 256, kTiles = 4, kSlots = 2;  // a warp alternates between two chunks of four tiles
constexpr int kInputs = 16 * kTiles * tile_linear::kOneTokenTile;

enum class Part { kAll, kNoProducts, kNoDecoding };

template <WeightFormat F, Part kPart>
__global__ void __launch_bounds__(1024, 1) TileRateKernel(const uint8_t* bytes, int64_t* cycles, float* out) {
  constexpr int kTile = static_cast<int>(TileBytes(F)), kChunk = kTiles * kTile;
  extern __shared__ __align__(128) uint8_t shared[];
  const int warps = static_cast<int>(blockDim.x) / 32, ring_bytes = warps * kSlots * kChunk;
  for (int i = 16 * static_cast<int>(threadIdx.x); i < ring_bytes + kInputs; i += 16 * static_cast<int>(blockDim.x)) {
    *reinterpret_cast<uint4*>(shared + i) = *reinterpret_cast<const uint4*>(bytes + i);
  }
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const uint32_t base = SharedAddress(shared), ring = base + static_cast<uint32_t>(warp * kSlots * kChunk),
                 x_begin = base + static_cast<uint32_t>(ring_bytes);
  tile_linear::OneTokenTiles<F> tiles(threadIdx.x % 32);
  uint32_t slot = 0, x = x_begin, folded = 0;
  __syncthreads();
  const int64_t begin = clock64();
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      uint32_t a[4][4];
      if constexpr (kPart == Part::kNoDecoding) {
        const uint4 w = *static_cast<const uint4*>(
            __cvta_shared_to_generic(ring + slot + static_cast<uint32_t>(i * kTile) + threadIdx.x % 32 * 16));
#pragma unroll
        for (int s = 0; s < 4; ++s) a[s][0] = w.x, a[s][1] = w.y, a[s][2] = w.z, a[s][3] = w.w;
      } else {
        tiles.Decode(ring + slot + static_cast<uint32_t>(i * kTile), a);
      }
      if constexpr (kPart == Part::kNoProducts) {
#pragma unroll
        for (int s = 0; s < 16; ++s) folded += a[s / 4][s % 4];
      } else {
        tiles.Multiply(a, x, i, 1.0f);
      }
    }
    slot = slot == 0 ? kChunk : 0;
    x = round % 16 == 15 ? x_begin : x + kTiles * tile_linear::kOneTokenTile;
  }
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
  const float2 sum = tiles.Take();
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum.x + sum.y + static_cast<float>(folded);
}

template <WeightFormat F, Part kPart>
void Rate(Gpu& gpu, const char* part) {
  const Floats random(gpu, 64 * 1024);
  const ExecContext& ctx = gpu.ctx();
  int64_t* cycles = static_cast<int64_t*>(gpu.Allocate(8 * ctx.gpu.multiprocessors));
  float* out = static_cast<float*>(gpu.Allocate(4 * 1024 * ctx.gpu.multiprocessors));
  for (const int warps : {4, 8, 16, 32}) {
    const size_t bytes = static_cast<size_t>(warps * kSlots * kTiles) * TileBytes(F) + kInputs;
    if (bytes > kSharedMemoryOfABlock) continue;
    const double us = gpu.MedianUs(1, [&](const ExecContext& ctx, int) {
      Launch(ctx, TileRateKernel<F, kPart>, dim3(static_cast<unsigned>(ctx.gpu.multiprocessors)),
             dim3(static_cast<unsigned>(32 * warps)), bytes, reinterpret_cast<const uint8_t*>(random.data()), cycles,
             out);
    });
    std::vector<int64_t> host(static_cast<size_t>(ctx.gpu.multiprocessors));
    cudaMemcpy(host.data(), cycles, host.size() * 8, cudaMemcpyDeviceToHost);
    std::sort(host.begin(), host.end());
    const double each = static_cast<double>(host[host.size() / 2]) / (kRounds * kTiles * warps / 4.0);
    Line("tile_rate")
        .Add("format", std::string(NameOf(F)))
        .Add("part", part)
        .Add("warps", warps)
        .Add("us", us)
        .Add("cycles_of_sub_core_a_tile", each)
        .Print();
  }
  cudaFree(cycles);
  cudaFree(out);
}

template <WeightFormat F>
void Rates(Gpu& gpu) {
  Rate<F, Part::kAll>(gpu, "all");
  Rate<F, Part::kNoProducts>(gpu, "no products");
  Rate<F, Part::kNoDecoding>(gpu, "no decoding");
}

}  // namespace
}  // namespace dsv4::bench

int main() {
  using namespace dsv4::bench;
  Gpu gpu;
  Rates<dsv4::WeightFormat::kNvfp4>(gpu);
  Rates<dsv4::WeightFormat::kFp8Block>(gpu);
  Rates<dsv4::WeightFormat::kBf16>(gpu);
}
