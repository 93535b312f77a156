#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/fill_weight/fill_weight.h"

namespace dsv4 {

namespace {

constexpr int kFillWeightThreads = 256;
constexpr int64_t kRun = 16;  // neighbouring columns of one thread (MXFP4 and tight formats: 32)

struct Fill {
  uint8_t* codes;
  uint8_t* scales;
  WeightFormat format;
  DType scale_dtype;
  int64_t rows, cols;
  float std, global_scale;
  int fp8_exponent, exponent_base;
  uint64_t seed;
};

template <int Block>
__device__ void FillFp4(const Fill& f, int64_t n, int64_t k) {
  const bool tight = IsTight(f.format);
  const int64_t first = n * f.cols + k;
  const float std = tight ? __fmul_rn(__fmul_rn(f.std, kFillSpread),
                                      gpu::Exp2Int(-FillShift(f.seed, static_cast<uint64_t>(first / Block))))
                          : f.std;
  float x[Block], largest = 0;
#pragma unroll
  for (int i = 0; i < Block; ++i) {
    x[i] = __fmul_rn(std, FillValue(f.seed, static_cast<uint64_t>(n * f.cols + k + i)));
    largest = fmaxf(largest, fabsf(x[i]));
  }
  uint8_t* scale = f.scales + n * (f.cols / Block) + k / Block;
  float unit;
  if (Block == kNvfp4BlockSize) {
    *scale = gpu::F32ToE4m3(__fdiv_rn(__fdiv_rn(largest, 6.0f), f.global_scale));
    unit = __fmul_rn(gpu::E4m3ToF32(*scale), f.global_scale);
  } else {
    int exponent = gpu::CeilLog2(fmaxf(__fdiv_rn(largest, 6.0f), 0x1p-100f));
    if (tight) exponent = max(exponent, f.exponent_base);
    if (f.format == WeightFormat::kNvfp4Tight) {
      f.scales[first / 16] = f.scales[first / 16 + 1] = gpu::F32ToE4m3(gpu::Exp2Int(exponent - f.exponent_base));
    } else {
      *scale = gpu::E8m0FromExponent(exponent);
    }
    unit = gpu::Exp2Int(exponent);
  }
  uint8_t* out = f.codes + n * (f.cols / 2) + k / 2;
#pragma unroll
  for (int i = 0; i < Block; i += 2) {
    out[i / 2] = static_cast<uint8_t>(gpu::F32ToE2m1(__fdiv_rn(x[i], unit)) | gpu::F32ToE2m1(__fdiv_rn(x[i + 1], unit))
                                                                                  << 4);
  }
}

__global__ void __launch_bounds__(kFillWeightThreads) FillKernel(Fill f, int64_t runs_per_row, int64_t run) {
  AllowNext();
  WaitForPrevious();
  const int64_t count = f.rows * runs_per_row;
  for (int64_t i = blockIdx.x * int64_t{kFillWeightThreads} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kFillWeightThreads) {
    const int64_t n = i / runs_per_row, k = i % runs_per_row * run;
    if (f.format == WeightFormat::kNvfp4) {
      FillFp4<16>(f, n, k);
      continue;
    }
    if (f.format == WeightFormat::kMxfp4 || IsTight(f.format)) {
      FillFp4<32>(f, n, k);
      continue;
    }
    for (int64_t c = k; c < min(k + run, f.cols); ++c) {
      const int64_t at = n * f.cols + c;
      const float x = __fmul_rn(f.std, FillValue(f.seed, static_cast<uint64_t>(at)));
      if (f.format == WeightFormat::kFp8Block) {
        f.codes[at] = gpu::F32ToE4m3(__fmul_rn(x, gpu::Exp2Int(-f.fp8_exponent)));
      } else if (f.format == WeightFormat::kBf16) {
        reinterpret_cast<uint16_t*>(f.codes)[at] = gpu::F32ToBf16(x);
      } else {
        reinterpret_cast<float*>(f.codes)[at] = x;
      }
    }
  }
  if (f.format != WeightFormat::kFp8Block) return;
  const int64_t scales = CeilDiv(f.rows, kFp8BlockSize) * CeilDiv(f.cols, kFp8BlockSize);
  for (int64_t i = blockIdx.x * int64_t{kFillWeightThreads} + threadIdx.x; i < scales;
       i += int64_t{gridDim.x} * kFillWeightThreads) {
    if (f.scale_dtype == DType::kF8E8M0) {
      f.scales[i] = gpu::E8m0FromExponent(f.fp8_exponent);
    } else {
      reinterpret_cast<float*>(f.scales)[i] = gpu::Exp2Int(f.fp8_exponent);
    }
  }
}

int CeilLog2Of(float x) {
  int e = 0;
  const float fraction = frexpf(x, &e);  // x = fraction * 2^e, fraction in [0.5, 1)
  return fraction == 0.5f ? e - 1 : e;
}

}  // namespace

void FillWeightCuda(const ExecContext& ctx, const FillWeightArgs& a) {
  const Fill f{a.codes,
               a.block_scale,
               a.w.format,
               a.w.scale_dtype,
               a.w.rows,
               a.w.cols,
               a.std,
               a.w.global_scale,
               CeilLog2Of(a.std * kFillRange / 448.0f),
               a.w.exponent_base,
               a.seed};
  const int64_t run = a.w.format == WeightFormat::kMxfp4 || IsTight(a.w.format) ? kMxfp4BlockSize : kRun;
  const int64_t runs_per_row = CeilDiv(a.w.cols, run);
  const int64_t blocks = CeilDiv(a.w.rows * runs_per_row, kFillWeightThreads);
  const auto grid = static_cast<unsigned>(blocks < ctx.gpu.multiprocessors * 16 ? blocks
                                                                                : ctx.gpu.multiprocessors * 16);
  Launch(ctx, FillKernel, dim3(grid), dim3(kFillWeightThreads), 0, f, runs_per_row, run);
}

}  // namespace dsv4
