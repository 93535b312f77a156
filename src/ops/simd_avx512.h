// Sixteen float32 lanes of AVX-512 (F, BW, VL, DQ): the declarations of simd.h, in zmm registers. Included by simd.h
// only.
#pragma once

#include <immintrin.h>

namespace dsv4::DSV4_ISA {

struct Vec {
  __m512 v;
};

DSV4_INLINE Vec Zero() { return {_mm512_setzero_ps()}; }
DSV4_INLINE Vec Set(float x) { return {_mm512_set1_ps(x)}; }
DSV4_INLINE Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
DSV4_INLINE void Store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
DSV4_INLINE Vec Add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
DSV4_INLINE Vec Sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
DSV4_INLINE Vec Mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
DSV4_INLINE Vec Div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
DSV4_INLINE Vec Fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
DSV4_INLINE Vec InRegister(Vec a) {
  asm("" : "+v"(a.v));
  return a;
}
DSV4_INLINE Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
DSV4_INLINE Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }

// Lane i + lane i + 8; the rest is as with eight lanes.
DSV4_INLINE __m256 FoldLanes(Vec a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
DSV4_INLINE void StoreSums(float* p, Vec a, Vec b, Vec c, Vec d) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(FoldLanes(a), FoldLanes(b)),
                                      _mm256_hadd_ps(FoldLanes(c), FoldLanes(d)));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

DSV4_INLINE Vec ScaleByPower(Vec x, Vec biased) {
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(biased.v), _mm512_set1_epi32(0x4B400000));
  const __m512i half = _mm512_srai_epi32(n, 1), bias = _mm512_set1_epi32(127);
  const __m512i low = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
  const __m512i high = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23);
  return {_mm512_mul_ps(_mm512_mul_ps(x.v, _mm512_castsi512_ps(low)), _mm512_castsi512_ps(high))};
}

DSV4_INLINE Vec LoadF32(const uint8_t* p) { return {_mm512_loadu_ps(p)}; }

DSV4_INLINE Vec LoadBf16(const uint8_t* p) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
}

inline constexpr float kE4m3Unit = 256.0f;
DSV4_INLINE Vec E4m3ToVec(__m128i codes) {
  const __m256i code = _mm256_cvtepu8_epi16(codes), largest = _mm256_set1_epi16(0x7F);
  const __m256i half = _mm256_slli_epi16(_mm256_add_epi16(code, _mm256_andnot_si256(largest, code)), 7);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(code, largest), largest);
  return {_mm512_cvtph_ps(_mm256_or_si256(half, nan))};
}
DSV4_INLINE Vec LoadE4m3(const uint8_t* p) { return E4m3ToVec(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
DSV4_INLINE void LoadE4m3(const uint8_t* p, Vec (&x)[2]) {
  x[0] = LoadE4m3(p);
  x[1] = LoadE4m3(p + kLanes);
}

// E2M1 values from a table of 16: the permutation reads the low four bits of every lane.
inline constexpr float kE2m1Unit = 1.0f;
DSV4_INLINE Vec LookUpE2m1(__m512i codes) {
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                      -3.0f, -4.0f, -6.0f);
  return {_mm512_permutexvar_ps(codes, table)};
}
// 32 codes of 16 bytes, in order.
DSV4_INLINE void LoadE2m1(const uint8_t* p, Vec (&x)[2]) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i odd = _mm_srli_epi16(bytes, 4);
  x[0] = LookUpE2m1(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, odd)));
  x[1] = LookUpE2m1(_mm512_cvtepu8_epi32(_mm_unpackhi_epi8(bytes, odd)));
}

}  // namespace dsv4::DSV4_ISA
