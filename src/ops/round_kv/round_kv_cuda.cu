#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/round_kv/round_kv.h"

namespace dsv4 {

namespace {

constexpr int kRoundKvThreads = 256;

// One warp per block of 64 channels (the block of a scale) or, after these, per 64 channels of BF16.
__global__ void __launch_bounds__(kRoundKvThreads) RoundKvKernel(float* kv, int64_t rows, int parts, RowFormat f) {
  AllowNext();
  WaitForPrevious();
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kRoundKvThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  const int64_t row = warp / parts, part = warp - row * parts;
  if (row >= rows) return;
  float* x = kv + row * f.dim;
  const int64_t nope = f.kind == RowFormat::Kind::kFp8 ? f.dim - f.rope_dim : 0;
  const int64_t scaled = (nope + kKvScaleBlock - 1) / kKvScaleBlock;
  if (part >= scaled) {
    const int64_t begin = nope + (part - scaled) * kKvScaleBlock;
    for (int64_t i = begin + lane; i < begin + kKvScaleBlock && i < f.dim; i += 32) x[i] = gpu::RoundToBf16(x[i]);
    return;
  }
  const RowFormat block = {.kind = RowFormat::Kind::kFp8, .dim = min(kKvScaleBlock, nope - part * kKvScaleBlock)};
  gpu::RoundRowWarp(block, x + part * kKvScaleBlock, lane);
}

}  // namespace

void RoundKvCuda(const ExecContext& ctx, const RoundKvArgs& a) {
  if (a.format.kind == RowFormat::Kind::kF32) return;
  DSV4_CHECK(a.format.kind == RowFormat::Kind::kFp8 || a.format.kind == RowFormat::Kind::kBf16);
  const int64_t nope = a.format.kind == RowFormat::Kind::kFp8 ? a.format.dim - a.format.rope_dim : 0;
  const int64_t parts = (nope + kKvScaleBlock - 1) / kKvScaleBlock +
                        (a.format.dim - nope + kKvScaleBlock - 1) / kKvScaleBlock;
  const int64_t warps = a.kv.dim(0) * parts;
  Launch(ctx, RoundKvKernel, dim3(static_cast<unsigned>((warps * 32 + kRoundKvThreads - 1) / kRoundKvThreads)),
         dim3(kRoundKvThreads), 0, a.kv.f32(), a.kv.dim(0), static_cast<int>(parts), a.format);
}

}  // namespace dsv4
