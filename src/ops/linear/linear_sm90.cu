#include "ops/linear/linear_sm90.h"

#include <algorithm>

#include "device/launch.cuh"
#include "ops/gemm_sm90.cuh"

namespace dsv4 {

namespace {

using namespace sm90;  // NOLINT: this file is sm90

bool IsHopper() {
  static const bool hopper = [] {
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 && minor == 0;
  }();
  return hopper;
}

struct LinearParams {
  const uint8_t* codes;
  const float* scales;   // FP8
  float global_scale;
  const uint8_t* tokens; // activations in blocks
  float* y;              // of the first token
  int64_t y_stride;
  int num_tokens, row_blocks8;  // rows of activations / 8
  int n;                        // rows of a group
  int groups, slabs, scale_stride;
  int row_steps, token_steps;   // tiles of a group
};

struct LinearTile {
  int group, token0, row_tile0;  // row tile of the whole matrix
  __device__ __forceinline__ LinearTile(const LinearParams& p, int tile, int tile_tokens) {
    const int row_step = tile % p.row_steps;
    group = tile / p.row_steps % p.groups;
    token0 = tile / p.row_steps / p.groups * tile_tokens;
    row_tile0 = group * p.n / 16 + row_step * kRowTiles;
  }
};

template <WeightFormat kFormat, int kN>
__global__ void __launch_bounds__(kGemmThreads, 1) LinearKernel(const LinearParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  const GemmShared s = CarveShared<kFormat>(memory);
  AllowNext();
  InitBarriers<kFormat>(s);
  WaitForPrevious();
  RingPosition<NumStages(kFormat)> ring;
  const int num_tiles = p.row_steps * p.groups * p.token_steps;
  const int warpgroup = static_cast<int>(threadIdx.x / 128), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (warpgroup == 0) {
    FewerRegisters<40>();
    if (warp != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles; tile += static_cast<int>(gridDim.x)) {
      const LinearTile at(p, tile, kN);
      const int end = ((at.group + 1) * p.n + 15) / 16, row_tile = at.row_tile0 + lane;
      const uint8_t* codes = lane < kRowTiles && row_tile < end
                                 ? p.codes + static_cast<int64_t>(row_tile) * p.slabs * TileBytes(kFormat) : nullptr;
      const int block = at.token0 / 8, blocks = min(kN / 8, p.row_blocks8 - block);
      const uint8_t* tokens = p.tokens + (static_cast<int64_t>(at.group) * p.slabs * p.row_blocks8 + block) * 1024;
      CopyTile<kFormat>(s, ring, codes, tokens, static_cast<uint32_t>(blocks) * 1024, int64_t{1024} * p.row_blocks8, p.slabs);
    }
  } else {
    MoreRegisters<232>();
    const int tile_of_block = 4 * (warpgroup - 1) + warp, g = lane / 4, t = lane % 4;
    const uint32_t offset = static_cast<uint32_t>(tile_of_block * TileBytes(kFormat) + 16 * lane);
    const WarpRows rows = {offset, offset, 0};
    for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles; tile += static_cast<int>(gridDim.x)) {
      const LinearTile at(p, tile, kN);
      const int row_tile = at.row_tile0 + tile_of_block;
      Fp8Scales scales;
      if (kFormat == WeightFormat::kFp8Block && row_tile < ((at.group + 1) * p.n + 15) / 16) {
        scales.row[0] = scales.row[1] = p.scales + static_cast<int64_t>(row_tile) * p.scale_stride;
      }
      float acc[kN / 2], unit[2];
      MultiplyTile<kFormat, kN, false>(s, ring, rows, scales, p.slabs, acc, unit);
      const float scale = p.global_scale * FormatScale<kFormat>();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = row_tile * 16 + g + 8 * r - at.group * p.n;
        if (row < 0 || row >= p.n) continue;
        float* y = p.y + static_cast<int64_t>(at.token0 + 2 * t) * p.y_stride + at.group * p.n + row;
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (at.token0 + 8 * j + 2 * t + i < p.num_tokens) {
              y[(8 * j + i) * p.y_stride] = acc[4 * j + 2 * r + i] * unit[r] * scale;
            }
          }
        }
      }
    }
  }
#endif
}

// x [T, groups * k] to blocks: block column c of group g is number g * slabs + c.
__global__ void __launch_bounds__(256) ConvertKernel(const float* x, uint8_t* out, int num_tokens, int row_blocks8, int groups,
                                                     int k, int slabs, bool aligned) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  AllowNext();
  WaitForPrevious();
  const int64_t count = static_cast<int64_t>(row_blocks8) * groups * slabs;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * 8;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32; i < count; i += stride) {
    const int column = static_cast<int>(i % (groups * slabs)), block = static_cast<int>(i / (groups * slabs));
    const int group = column / slabs, k0 = column % slabs * 64;
    const int token = block * 8 + static_cast<int>(threadIdx.x % 32 / 4);
    const float* row = token < num_tokens ? x + (static_cast<int64_t>(token) * groups + group) * k + k0 : nullptr;
    ConvertBlock(row, k - k0, aligned, out + (static_cast<int64_t>(column) * row_blocks8 + block) * 1024);
  }
#endif
}

template <WeightFormat kFormat, int kN>
void LaunchTiles(const ExecContext& ctx, LinearParams p) {
  p.token_steps = static_cast<int>(CeilDiv(p.num_tokens, kN));
  const int tiles = p.row_steps * p.groups * p.token_steps;
  Launch(ctx, LinearKernel<kFormat, kN>, dim3(static_cast<unsigned>(std::min(tiles, NumSms()))), dim3(kGemmThreads),
         static_cast<size_t>(GemmSharedBytes(kFormat)), p);
}

// Tokens of a tile: the width that takes the fewest rounds of the whole GPU, wide tiles first.
int TileTokens(const LinearParams& p) {
  int best = 256;
  double best_cost = 1e30;
  for (const int n : {256, 192, 128, 64}) {
    const int64_t tiles = p.row_steps * p.groups * CeilDiv(p.num_tokens, n);
    const double cost = static_cast<double>(CeilDiv(tiles, NumSms())) * (n + 24);
    if (cost < best_cost * 0.97) best = n, best_cost = cost;
  }
  return best;
}

template <WeightFormat kFormat>
void LaunchFormat(const ExecContext& ctx, const LinearParams& p) {
  switch (TileTokens(p)) {
    case 64: return LaunchTiles<kFormat, 64>(ctx, p);
    case 128: return LaunchTiles<kFormat, 128>(ctx, p);
    case 192: return LaunchTiles<kFormat, 192>(ctx, p);
    default: return LaunchTiles<kFormat, 256>(ctx, p);
  }
}

}  // namespace

bool LinearPrefillSm90Supports(const LinearArgs& a) {
  return a.w.layout == WeightLayout::kTiles && a.w.format != WeightFormat::kF32 && IsHopper();
}

void LinearPrefillSm90(const ExecContext& ctx, const LinearArgs& a) {
  const int64_t num_tokens = a.x.dim(0), k = a.w.cols, n = a.w.rows / a.groups, slabs = CeilDiv(k, kTileCols64);
  const int64_t token_bytes = a.groups * slabs * 128;
  const int64_t fit = ctx.scratch.bytes / token_bytes / kMaxTokens * kMaxTokens;
  DSV4_CHECK(fit > 0, "scratch of ", ctx.scratch.bytes, " bytes");
  const int64_t pieces = CeilDiv(num_tokens, fit);
  const int64_t piece = CeilDiv(CeilDiv(num_tokens, pieces), kMaxTokens) * kMaxTokens;
  for (int64_t begin = 0; begin < num_tokens; begin += piece) {
    const int64_t count = std::min(piece, num_tokens - begin), blocks8 = CeilDiv(count, 8);
    const float* x = a.x.f32() + begin * a.groups * k;
    const bool aligned = k % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    const int64_t warps = blocks8 * a.groups * slabs;
    Launch(ctx, ConvertKernel, dim3(static_cast<unsigned>(std::min<int64_t>(CeilDiv(warps, 8), NumSms() * 16))), dim3(256), 0, x,
           ctx.scratch.data, static_cast<int>(count), static_cast<int>(blocks8), static_cast<int>(a.groups), static_cast<int>(k),
           static_cast<int>(slabs), aligned);
    const int64_t first = 0, last = CeilDiv(n, kTileRows16) + (a.groups > 1 && n % kTileRows16 != 0 ? 1 : 0);
    const LinearParams p = {
        .codes = a.w.codes,
        .scales = reinterpret_cast<const float*>(a.w.block_scale),
        .global_scale = a.w.global_scale,
        .tokens = ctx.scratch.data,
        .y = a.y.f32() + begin * a.groups * n,
        .y_stride = a.groups * n,
        .num_tokens = static_cast<int>(count),
        .row_blocks8 = static_cast<int>(blocks8),
        .n = static_cast<int>(n),
        .groups = static_cast<int>(a.groups),
        .slabs = static_cast<int>(slabs),
        .scale_stride = static_cast<int>(CeilDiv(k, kFp8BlockSize)),
        .row_steps = static_cast<int>(CeilDiv(last - first, kRowTiles)),
        .token_steps = 0,
    };
    switch (a.w.format) {
      case WeightFormat::kNvfp4: LaunchFormat<WeightFormat::kNvfp4>(ctx, p); break;
      case WeightFormat::kMxfp4: LaunchFormat<WeightFormat::kMxfp4>(ctx, p); break;
      case WeightFormat::kFp8Block: LaunchFormat<WeightFormat::kFp8Block>(ctx, p); break;
      case WeightFormat::kBf16: LaunchFormat<WeightFormat::kBf16>(ctx, p); break;
      case WeightFormat::kF32: break;
    }
  }
}

}  // namespace dsv4
