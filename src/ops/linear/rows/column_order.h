// The order in which a row's columns are decoded, and the arrangement of the input that matches it.
//
// Unpacking 4-bit codes yields another order than the file's. Instead of sorting every weight, the kernels arrange the
// few inputs once: position p of a block of kOrderedBlock columns holds column OrderedColumn(p). The order is part of
// the kernel's summation order (multiply_rows.h): it is the same for every number of tokens, rows and threads.
#pragma once

#include <algorithm>

#include "ops/simd.h"
#include "tensor/quant_tensor.h"

namespace dsv4::DSV4_ISA {

enum class ColumnOrder : uint8_t { kFile, kE2m1 };

#if defined(DSV4_SIMD_AVX512)

// Lane j has the eight codes of the j-th four bytes, one per vector.
inline constexpr int64_t kOrderedBlock = 128;
constexpr int64_t OrderedColumn(int64_t p) { return p % 16 * 8 + p / 16; }
constexpr ColumnOrder OrderOf(WeightFormat f) { return InfoOf(f).packed() ? ColumnOrder::kE2m1 : ColumnOrder::kFile; }

#elif defined(DSV4_SIMD_AVX2)

inline constexpr int64_t kOrderedBlock = 16;

// Low nibbles (even columns) go to the low half of a vector, high nibbles to the high half. A half has every second
// byte: columns 0 4 8 12 | 1 5 9 13 and 2 6 10 14 | 3 7 11 15.
constexpr int64_t OrderedColumn(int64_t p) { return p % 4 * 4 + p / 8 * 2 + p / 4 % 2; }

constexpr ColumnOrder OrderOf(WeightFormat f) { return InfoOf(f).packed() ? ColumnOrder::kE2m1 : ColumnOrder::kFile; }

// x[p] = column OrderedColumn(p) of 32 codes (two blocks), or of 16 (one). One byte shuffle looks up the low byte and
// one the high byte of the BF16 that equals the code. Then the two halves of 32-bit lanes become float32.
DSV4_INLINE void WidenE2m1(__m256i nibbles, __m256i& low, __m256i& high) {
  const __m256i high_bytes = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  const __m256i low_bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40));
  const __m256i h = _mm256_shuffle_epi8(high_bytes, nibbles), l = _mm256_shuffle_epi8(low_bytes, nibbles);
  low = _mm256_unpacklo_epi8(l, h);
  high = _mm256_unpackhi_epi8(l, h);
}
DSV4_INLINE Vec EvenBf16(__m256i pairs) { return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))}; }
DSV4_INLINE Vec OddBf16(__m256i pairs) {
  return {_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))))};
}
DSV4_INLINE __m256i Nibbles(__m128i bytes) {
  const __m256i both = _mm256_srlv_epi64(_mm256_broadcastsi128_si256(bytes), _mm256_setr_epi64x(0, 0, 4, 4));
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}
DSV4_INLINE void DecodeE2m1(const uint8_t* p, Vec (&x)[4]) {
  __m256i first, second;
  WidenE2m1(Nibbles(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), first, second);
  x[0] = EvenBf16(first);
  x[1] = OddBf16(first);
  x[2] = EvenBf16(second);
  x[3] = OddBf16(second);
}
DSV4_INLINE void DecodeE2m1(const uint8_t* p, Vec (&x)[2]) {
  __m256i first, second;
  WidenE2m1(Nibbles(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), first, second);
  x[0] = EvenBf16(first);
  x[1] = OddBf16(first);
}

#else

inline constexpr int64_t kOrderedBlock = kLanes;
constexpr int64_t OrderedColumn(int64_t p) { return p; }
constexpr ColumnOrder OrderOf(WeightFormat) { return ColumnOrder::kFile; }

#endif

// The positions of K columns: whole vectors, and whole blocks if the order is not the file's.
constexpr int64_t NumPositions(int64_t k, ColumnOrder order) {
  return order == ColumnOrder::kFile ? PadToLanes(k) : CeilDiv(k, kOrderedBlock) * kOrderedBlock;
}

// Sets out[p] for all positions of x's K columns; 0 if a position has no column.
inline void Arrange(const float* x, int64_t k, ColumnOrder order, float* out) {
  int64_t i = 0;
  if (order == ColumnOrder::kE2m1) {
    for (; i + kOrderedBlock <= k; i += kOrderedBlock) {
      for (int64_t p = 0; p < kOrderedBlock; ++p) out[i + p] = x[i + OrderedColumn(p)];
    }
    if (i == k) return;
    for (int64_t p = 0; p < kOrderedBlock; ++p) {
      out[i + p] = i + OrderedColumn(p) < k ? x[i + OrderedColumn(p)] : 0.0f;
    }
    return;
  }
  std::copy_n(x, k, out);
  std::fill(out + k, out + NumPositions(k, order), 0.0f);
}

}  // namespace dsv4::DSV4_ISA
