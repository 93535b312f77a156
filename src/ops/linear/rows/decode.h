// One weight row of a QuantTensor as a source of decoded vectors:
//   Load(k)        weights k .. k + kLanes - 1, k a multiple of kLanes
//   Load(k, x)     weights k .. k + kLanes kVectors - 1, k a multiple of kLanes kVectors
//   LoadTail(k, n) the n < kLanes weights at the end of a row, then zeros
//   Prefetch(k, n) prefetches the memory of n weights from k
//   At(w, i)       the i-th row if a few rows are multiplied at a time: rows in tiles share cache lines
// E2M1 rows have their columns in the order of column_order.h: k counts positions in that order, and there is no tail.
// Codes times block scales are exact in float32 for MXFP4 and NVFP4. An FP8 row yields plain codes (times 1 / kUnit, a
// power of two). The scale of its 128 columns multiplies their sum, because an F32 scale times a code would round.
#pragma once

#include "ops/linear/rows/column_order.h"
#include "ops/simd.h"
#include "tensor/codec/weight.h"
#include "tensor/quant_tensor.h"

namespace dsv4::DSV4_ISA {

DSV4_INLINE void PrefetchBytes(const uint8_t* p, int64_t n) {
  for (int64_t i = 0; i < n; i += 64) __builtin_prefetch(p + i);
}

// Plain rows: `Bytes` bytes per weight.
template <Vec (*LoadVec)(const uint8_t*), int64_t Bytes>
struct PlainRow {
  const uint8_t* codes;

  static constexpr int64_t Whole(int64_t k_dim) { return k_dim / kLanes * kLanes; }  // columns in whole vectors
  static constexpr bool kInTiles = false;
  static DSV4_INLINE int64_t At(const QuantTensor&, int64_t i) { return i; }
  DSV4_INLINE PlainRow(const QuantTensor& w, int64_t n) : codes(w.codes + n * w.cols * Bytes) {}
  DSV4_INLINE Vec Load(int64_t k) const { return LoadVec(codes + k * Bytes); }
  DSV4_INLINE void Load(int64_t k, Vec (&x)[1]) const { x[0] = Load(k); }
  DSV4_INLINE Vec LoadTail(int64_t k, int64_t n) const {
    uint8_t padded[kLanes * Bytes] = {};
    std::memcpy(padded, codes + k * Bytes, static_cast<size_t>(n * Bytes));
    return LoadVec(padded);
  }
  DSV4_INLINE void Prefetch(int64_t k, int64_t n) const { PrefetchBytes(codes + k * Bytes, n * Bytes); }
};

struct F32Row : PlainRow<LoadF32, 4> {
  static constexpr int kVectors = 1;
  static constexpr int64_t kChunk = 256;
  static constexpr bool kChunkScale = false;
  static constexpr int64_t kCodeBits = 32;
  static constexpr float kUnit = 1.0f;
  using PlainRow::PlainRow;
};

struct Bf16Row : PlainRow<LoadBf16, 2> {
  static constexpr int kVectors = 1;
  static constexpr int64_t kChunk = 256;
  static constexpr bool kChunkScale = false;
  static constexpr int64_t kCodeBits = 16;
  static constexpr float kUnit = 1.0f;
  using PlainRow::PlainRow;
};

struct Fp8Row : PlainRow<LoadE4m3, 1> {
  static constexpr int64_t kChunk = kFp8BlockSize;
  static constexpr bool kChunkScale = true;
  static float ChunkScale(const QuantTensor& w, int64_t n, int64_t k) { return Fp8BlockScale(w, n, k); }
  static constexpr int kVectors = 2;
  static constexpr int64_t kCodeBits = 8;
  static constexpr float kUnit = kE4m3Unit;
  using PlainRow::Load;
  using PlainRow::PlainRow;
  DSV4_INLINE void Load(int64_t k, Vec (&x)[2]) const { LoadE4m3(codes + k, x); }
};

#if defined(DSV4_SIMD_AVX512)
// Sixteen E8M0 codes, one per lane.
DSV4_INLINE __m512 E8m0ToVec(__m512i code) {
  __m512i bits = _mm512_slli_epi32(code, 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(code, _mm512_setzero_si512()),
                               _mm512_set1_epi32(0x00400000));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255)),
                               _mm512_set1_epi32(0x7FC00000));
  return _mm512_castsi512_ps(bits);
}
#endif

// Rows of E2M1 codes with a scale per `Block` columns, looked up in `Table`. The columns are in the order of
// column_order.h.
template <int64_t Block, const std::array<float, 256>& Table>
struct Fp4Row {
  static constexpr int64_t kChunk = 256;
  static constexpr bool kChunkScale = false;
  static constexpr int64_t kCodeBits = 4;
  static constexpr float kUnit = 1.0f;
  const uint8_t* codes;
  const uint8_t* scales;

  static constexpr int64_t Whole(int64_t k_dim) { return NumPositions(k_dim, OrderOf(WeightFormat::kNvfp4)); }
  static constexpr bool kInTiles = false;
  static DSV4_INLINE int64_t At(const QuantTensor&, int64_t i) { return i; }

#if defined(DSV4_SIMD_AVX512)
  static constexpr int kVectors = 8;
  int64_t cols;

  DSV4_INLINE Fp4Row(const QuantTensor& w, int64_t n)
      : codes(w.codes + n * (w.cols / 2)), scales(w.block_scale + n * (w.cols / Block)), cols(w.cols) {}
  DSV4_INLINE Vec Load(int64_t k) const {
    Vec x[8];
    Load(k / kOrderedBlock * kOrderedBlock, x);
    return x[k % kOrderedBlock / kLanes];
  }
  // 128 weights; zeros after the end of the row.
  DSV4_INLINE void Load(int64_t k, Vec (&x)[8]) const {
    __m512i packed;
    uint64_t scale = 0;
    if (k + kOrderedBlock <= cols) {
      packed = _mm512_loadu_si512(codes + k / 2);
      std::memcpy(&scale, scales + k / Block, kOrderedBlock / Block);
    } else {
      packed = _mm512_maskz_loadu_epi8((__mmask64{1} << ((cols - k) / 2)) - 1, codes + k / 2);
      std::memcpy(&scale, scales + k / Block, static_cast<size_t>((cols - k) / Block));
    }
    const __m512 factors = Scales(scale);
    for (int v = 0; v < 8; ++v) {
      const __m512i codes_of_lane = _mm512_srli_epi32(packed, static_cast<unsigned>(4 * v));
      x[v] = {_mm512_mul_ps(LookUpE2m1(codes_of_lane).v, factors)};
    }
  }
  // The scale of every lane's eight columns.
  static DSV4_INLINE __m512 Scales(uint64_t scale) {
    const __m128i bytes = _mm_cvtsi64_si128(static_cast<int64_t>(scale));
    if constexpr (Block == kNvfp4BlockSize) {
      return _mm512_mul_ps(E4m3ToVec(_mm_unpacklo_epi8(bytes, bytes)).v, _mm512_set1_ps(kE4m3Unit));
    } else {
      return E8m0ToVec(
          _mm512_cvtepu8_epi32(_mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3))));
    }
  }
#elif defined(DSV4_SIMD_AVX2)
  static constexpr int kVectors = 4;
  DSV4_INLINE Fp4Row(const QuantTensor& w, int64_t n)
      : codes(w.codes + n * (w.cols / 2)), scales(w.block_scale + n * (w.cols / Block)) {}
  // One vector of the 16 columns at k: only for the last 16 columns of a row.
  DSV4_INLINE Vec Load(int64_t k) const {
    const int64_t at = k / kOrderedBlock * kOrderedBlock;
    Vec x[2];
    DecodeE2m1(codes + at / 2, x);
    return Mul(x[(k - at) / kLanes], Set(Table[scales[at / Block]]));
  }
  DSV4_INLINE void Load(int64_t k, Vec (&x)[4]) const {
    DecodeE2m1(codes + k / 2, x);
    const Vec first = Set(Table[scales[k / Block]]);
    const Vec second = Block >= 32 ? first : Set(Table[scales[k / Block + 16 / Block]]);
    x[0] = Mul(x[0], first);
    x[1] = Mul(x[1], first);
    x[2] = Mul(x[2], second);
    x[3] = Mul(x[3], second);
  }
#else
  static constexpr int kVectors = 4;
  DSV4_INLINE Fp4Row(const QuantTensor& w, int64_t n)
      : codes(w.codes + n * (w.cols / 2)), scales(w.block_scale + n * (w.cols / Block)) {}
  DSV4_INLINE Vec Load(int64_t k) const { return Mul(LoadE2m1(codes + k / 2), Set(Table[scales[k / Block]])); }
  DSV4_INLINE void Load(int64_t k, Vec (&x)[4]) const {
    LoadE2m1(codes + k / 2, x);
    for (int64_t v = 0; v < 4; ++v) x[v] = Mul(x[v], Set(Table[scales[k / Block + v * kLanes / Block]]));
  }
#endif
  DSV4_INLINE Vec LoadTail(int64_t, int64_t) const { return Zero(); }  // a row has whole blocks, so there is no tail
  DSV4_INLINE void Prefetch(int64_t k, int64_t n) const {
    PrefetchBytes(codes + k / 2, n / 2);
    PrefetchBytes(scales + k / Block, n / Block);
  }
};
#if defined(DSV4_SIMD_AVX2) || defined(DSV4_SIMD_AVX512)
using Mxfp4Row = Fp4Row<kMxfp4BlockSize, kE8m0Table>;
using Nvfp4Row = Fp4Row<kNvfp4BlockSize, kE4m3Table>;
#else
using Mxfp4Row = Fp4Row<kMxfp4BlockSize, kE8m0ScaleOfE2m1>;
using Nvfp4Row = Fp4Row<kNvfp4BlockSize, kE4m3ScaleOfE2m1>;
#endif

// Calls fn.operator()<Row>() with the row type of this format.
template <typename Fn>
DSV4_INLINE void WithRowsOf(WeightFormat format, const Fn& fn) {
  switch (format) {
    case WeightFormat::kF32:
      return fn.template operator()<F32Row>();
    case WeightFormat::kBf16:
      return fn.template operator()<Bf16Row>();
    case WeightFormat::kFp8Block:
      return fn.template operator()<Fp8Row>();
    case WeightFormat::kMxfp4:
    case WeightFormat::kMxfp4Tight:
      return fn.template operator()<Mxfp4Row>();
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Tight:
      return fn.template operator()<Nvfp4Row>();
  }
}

}  // namespace dsv4::DSV4_ISA
