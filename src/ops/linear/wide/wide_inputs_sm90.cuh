// x for WideLinearKernel: two BF16 terms per input, in blocks (ops/activation_blocks.cuh), and the scales of rows that
// a norm multiplies sums with.
#pragma once

#include "ops/gemm_sm90.cuh"
#include "ops/linear/tile/tile_linear.cuh"

namespace dsv4::wide_linear {

constexpr int kFewTokens = 32, kManyTokens = 64;  // of a tile
// The columns of a tile: its tokens' first terms, then the second terms. The bytes of a tile and 64 columns of x.
constexpr int ColumnsOf(int tokens) { return 2 * tokens; }
constexpr int InputBytes(int tokens) { return ColumnsOf(tokens) * 128; }
constexpr int kInputThreads = 256, kInputWarps = kInputThreads / 32;

struct Inputs {
  const float* x;     // [T, groups * k]
  const float* norm;  // [k], or null
  uint8_t* out;       // [group][64 columns of k][token tile][number] of InputBytes / 2
  float* row_scales;  // [T]; with a norm
  int* counters;      // set to zero
  int num_counters, num_tokens, tile_tokens, token_tiles, groups, k, slabs;
  int scale_blocks;  // the first blocks of the grid
  bool aligned, norm_aligned;
  float norm_eps;

  __host__ __device__ int eighths() const { return tile_tokens / 8; }  // of a tile: one warp per 8 tokens
  __host__ __device__ int tiles() const { return groups * slabs * token_tiles; }
  int input_blocks() const { return (tiles() * eighths() + kInputWarps - 1) / kInputWarps; }
};

// Converts eight tokens and 64 columns.
__device__ __forceinline__ void ConvertBlock(const Inputs& p, int tile, int eighth) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = tile / p.token_tiles, group = column / p.slabs,
            k0 = column % p.slabs * 64, token = tile % p.token_tiles * p.tile_tokens + 8 * eighth + lane / 4;
  const float* x = token < p.num_tokens ? p.x + (static_cast<int64_t>(token) * p.groups + group) * p.k + k0 : nullptr;
  sm90::BlockValues values;
  values.Load(x, p.k - k0, p.aligned);
  if (p.norm != nullptr) {
    sm90::BlockValues weights;
    weights.Load(p.norm + k0, p.k - k0, p.norm_aligned);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float4& v = values.v[i];
      const float4& w = weights.v[i];
      v = {__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z), __fmul_rn(v.w, w.w)};
    }
  }
  const int bytes = InputBytes(p.tile_tokens);
  uint8_t* const out = p.out + static_cast<int64_t>(tile) * bytes + eighth * 1024;
  values.Store<false>(out, lane / 4);
  values.KeepRest<false>();
  values.Store<false>(out + bytes / 2, lane / 4);
}

__global__ void __launch_bounds__(kInputThreads) InputsKernel(const __grid_constant__ Inputs p) {
  AllowNext();
  WaitForPrevious();
  const int block = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  for (int i = block * kInputThreads + static_cast<int>(threadIdx.x); i < p.num_counters;
       i += static_cast<int>(gridDim.x) * kInputThreads) {
    p.counters[i] = 0;
  }
  if (block >= p.scale_blocks) {
    const int at = (block - p.scale_blocks) * kInputWarps + warp, tile = at / p.eighths();
    if (tile < p.tiles()) ConvertBlock(p, tile, at % p.eighths());
    return;
  }
  const int token = block * kInputWarps + warp, lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= p.num_tokens) return;
  const float scale = tile_linear::RowScale(p.x + static_cast<int64_t>(token) * p.k, p.k, p.norm_eps, lane);
  if (lane == 0) p.row_scales[token] = scale;
}

inline void ConvertInputs(const ExecContext& ctx, const Inputs& p) {
  Launch(ctx, InputsKernel, dim3(static_cast<unsigned>(p.scale_blocks + p.input_blocks())), dim3(kInputThreads), 0, p);
}

}  // namespace dsv4::wide_linear
