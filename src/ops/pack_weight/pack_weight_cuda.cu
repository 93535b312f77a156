#include <algorithm>

#include "device/launch.cuh"
#include "ops/pack_weight/pack_weight.h"
#include "ops/pack_weight/tight.h"

namespace dsv4 {

namespace {

constexpr int kPackWeightThreads = 256;

// Sources have the file's layout: loads `Bytes` (a power of two, at most 16) from any address.
template <int Bytes>
__device__ __forceinline__ void LoadAnyAddress(const uint8_t* p, uint8_t (&out)[Bytes]) {
  static_assert(Bytes == 8 || Bytes == 16);
  if (reinterpret_cast<uintptr_t>(p) % 8 == 0) {
#pragma unroll
    for (int i = 0; i < Bytes / 8; ++i) {
      const uint2 v = reinterpret_cast<const uint2*>(p)[i];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        out[8 * i + b] = static_cast<uint8_t>(v.x >> (8 * b));
        out[8 * i + 4 + b] = static_cast<uint8_t>(v.y >> (8 * b));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < Bytes; ++i) out[i] = p[i];
  }
}

// The matrix to pack; strides in bytes.
struct PackSource {
  QuantTensor w;
  int64_t row_stride, scale_stride;
};

// Loads `Bytes` bytes of row n from byte `at`; zeros past the row's end and below the last row.
template <int Bytes>
__device__ __forceinline__ void LoadRow(const PackSource& s, int64_t row_bytes, int64_t n, int64_t at,
                                        uint8_t (&out)[Bytes]) {
#pragma unroll
  for (int i = 0; i < Bytes; ++i) out[i] = 0;
  if (n >= s.w.rows || at >= row_bytes) return;
  const uint8_t* p = s.w.codes + n * s.row_stride + at;
  if (at + Bytes <= row_bytes) {
    LoadAnyAddress(p, out);
  } else {
#pragma unroll
    for (int i = 0; i < Bytes; ++i) {
      if (at + i < row_bytes) out[i] = p[i];
    }
  }
}

// Called by a warp. `shift`: TightShift, for tight formats.
__device__ __forceinline__ void PackFp4Lane(const PackSource& s, int shift, int64_t n0, int64_t k0, int lane,
                                            uint8_t* tile) {
  const QuantTensor& w = s.w;
  const int g = lane / 4, t = lane % 4;
  const bool nvfp4 = FormatOfRows(w.format) == WeightFormat::kNvfp4, tight = IsTight(w.format);
  const int64_t block = nvfp4 ? kNvfp4BlockSize : kMxfp4BlockSize, k = k0 + 16 * t;
  Fp4Words words[2];
  uint32_t scales = 0;  // one byte per row; one nibble for tight formats
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t n = n0 + g + 8 * r;
    uint8_t bytes[8];
    LoadRow<8>(s, w.cols / 2, n, k / 2, bytes);
    uint64_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) codes |= uint64_t{bytes[i]} << (8 * i);
    uint32_t scale = n < w.rows && k < w.cols ? w.block_scale[n * s.scale_stride + k / block] : 0u;
    if (nvfp4) codes = CodesUnderScale(codes, scale);
    words[r] = PlaceFp4(codes);
    if (tight) {
      scales |= AreZeros(codes) ? 0u : static_cast<uint32_t>(ScaleExponent(w.format, scale) + shift) << (4 * r);
    } else {
      scales |= (nvfp4 ? TileScale(scale) : scale) << (8 * r);
    }
  }
  reinterpret_cast<uint4*>(tile)[lane] = make_uint4(words[0].low, words[0].high, words[1].low, words[1].high);
  if (tight) {
    scales |= __shfl_xor_sync(0xFFFFFFFFu, scales, 1);
    if (lane % 2 == 0) tile[512 + lane / 2] = static_cast<uint8_t>(scales);
  } else {
    reinterpret_cast<uint16_t*>(tile + 512)[lane] = static_cast<uint16_t>(scales);
  }
}

__device__ __forceinline__ void PackFp8Lane(const PackSource& source, int64_t n0, int64_t k0, int lane, uint8_t* tile) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint8_t b[16];
    LoadRow<16>(source, source.w.cols, n0 + g + 8 * r, k0 + 16 * t, b);
    uint32_t words[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      words[s] = b[4 * s] | static_cast<uint32_t>(b[4 * s + 2]) << 8 | static_cast<uint32_t>(b[4 * s + 1]) << 16 |
                 static_cast<uint32_t>(b[4 * s + 3]) << 24;
    }
    reinterpret_cast<uint4*>(tile + 512 * r)[lane] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

__device__ __forceinline__ void PackBf16Lane(const PackSource& source, int64_t n0, int64_t k0, int lane,
                                             uint8_t* tile) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    uint32_t words[4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint8_t b[8];  // columns 0 .. 3 of the step
      LoadRow<8>(source, source.w.cols * 2, n0 + g + 8 * r, (k0 + 16 * t + 4 * s) * 2, b);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words[2 * i + r] = b[4 * i] | static_cast<uint32_t>(b[4 * i + 1]) << 8 |
                           static_cast<uint32_t>(b[4 * i + 2]) << 16 | static_cast<uint32_t>(b[4 * i + 3]) << 24;
      }
    }
    reinterpret_cast<uint4*>(tile + 512 * s)[lane] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// A warp packs a tile at a time.
__global__ void __launch_bounds__(kPackWeightThreads)
    PackTilesKernel(PackSource s, int tight_shift, uint8_t* codes, int64_t tile_bytes, int64_t num_tiles) {
  AllowNext();
  WaitForPrevious();
  const int lane = threadIdx.x % 32;
  const int64_t across = CeilDiv(s.w.cols, kTileCols64),
                step = static_cast<int64_t>(gridDim.x) * (kPackWeightThreads / 32);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * (kPackWeightThreads / 32) + threadIdx.x / 32; i < num_tiles;
       i += step) {
    const int64_t n = i / across * kTileRows16, k = i % across * kTileCols64;
    uint8_t* tile = codes + i * tile_bytes;
    switch (s.w.format) {
      case WeightFormat::kNvfp4:
      case WeightFormat::kMxfp4:
      case WeightFormat::kNvfp4Tight:
      case WeightFormat::kMxfp4Tight:
        PackFp4Lane(s, tight_shift, n, k, lane, tile);
        break;
      case WeightFormat::kFp8Block:
        PackFp8Lane(s, n, k, lane, tile);
        break;
      case WeightFormat::kBf16:
        PackBf16Lane(s, n, k, lane, tile);
        break;
      case WeightFormat::kF32:
        break;
    }
  }
}

__global__ void __launch_bounds__(kPackWeightThreads)
    PackFp8ScalesKernel(PackSource s, uint32_t* scales, int64_t count) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPackWeightThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t across = CeilDiv(s.w.cols, kFp8BlockSize), row = s.w.scale_row_offset + i / across * kTileRows16;
  const uint8_t* p = s.w.block_scale + row / kFp8BlockSize * s.scale_stride;
  uint32_t bits;
  if (s.w.scale_dtype == DType::kF8E8M0) {
    const uint32_t e = p[i % across];
    bits = e == 255 ? 0x7FC00000u : e == 0 ? 0x00400000u : e << 23;
  } else {
    p += i % across * 4;
    bits = p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
           static_cast<uint32_t>(p[3]) << 24;
  }
  scales[i] = bits;
}

}  // namespace

void PackWeightCuda(const ExecContext& ctx, const PackWeightArgs& a) {
  const int64_t num_tiles = CeilDiv(a.w.rows, kTileRows16) * CeilDiv(a.w.cols, kTileCols64);
  const int64_t blocks = std::min<int64_t>(CeilDiv(num_tiles, kPackWeightThreads / 32),
                                           int64_t{8} * ctx.gpu.multiprocessors);
  const PackSource source{a.w, RowStride(a), ScaleStride(a)};
  Launch(ctx, PackTilesKernel, dim3(static_cast<unsigned>(blocks)), dim3(kPackWeightThreads), 0, source,
         IsTight(a.w.format) ? TightShift(a.w) : 0, a.codes, TileBytes(a.w.format), num_tiles);
  const int64_t num_scales = PackedScaleBytes(a.w) / 4;
  Launch(ctx, PackFp8ScalesKernel, dim3(static_cast<unsigned>(CeilDiv(num_scales, kPackWeightThreads))),
         dim3(kPackWeightThreads), 0, source, reinterpret_cast<uint32_t*>(a.block_scale), num_scales);
}

}  // namespace dsv4
