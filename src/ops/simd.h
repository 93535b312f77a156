// Float32 lanes, eight or (AVX-512) sixteen: the vector code of the *_cpu.cc kernels, written once and compiled per
// instruction set. Everything is in namespace DSV4_ISA. With AVX2 and AVX-512 Fma rounds once; the generic build uses
// std::experimental::simd (SSE2, NEON) and Fma rounds twice. Within a build every function is deterministic: the sum of
// eight lanes is ((0+1)+(2+3)) + ((4+5)+(6+7)) everywhere; sixteen lanes are first folded to eight.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "tensor/codec/fp4.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define DSV4_SIMD_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define DSV4_SIMD_AVX2 1
#include <immintrin.h>
#else
#include <experimental/simd>
#endif

#define DSV4_INLINE inline __attribute__((always_inline))

namespace dsv4::DSV4_ISA {

#ifdef DSV4_SIMD_AVX512
inline constexpr int64_t kLanes = 16;
#else
inline constexpr int64_t kLanes = 8;
#endif

constexpr int64_t PadToLanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Values of all E4M3 and E8M0 codes times `unit`, a power of two near 1 (exact).
constexpr std::array<float, 256> MakeE4m3Table(float unit) {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t magnitude = code & 0x7Fu, sign = (code & 0x80u) << 24;
    const uint32_t exponent = magnitude >> 3, mantissa = magnitude & 7u;
    const float power = std::bit_cast<float>(((exponent == 0 ? 1u : exponent) + 120u) << 23);  // 2^(e - 7)
    const float value = power * (static_cast<float>(mantissa) * 0.125f + (exponent == 0 ? 0.0f : 1.0f)) * unit;
    const uint32_t bits = magnitude == 0x7F ? 0x7FC00000u : std::bit_cast<uint32_t>(value);
    table[code] = std::bit_cast<float>(sign | bits);
  }
  return table;
}
constexpr std::array<float, 256> MakeE8m0Table(float unit) {
  std::array<float, 256> table{};
  table[0] = 0x1p-127f * unit;
  for (uint32_t code = 1; code < 255; ++code) table[code] = std::bit_cast<float>(code << 23) * unit;
  table[255] = std::bit_cast<float>(0x7FC00000u);
  return table;
}
alignas(64) inline constexpr std::array<float, 256> kE4m3Table = MakeE4m3Table(1.0f);
alignas(64) inline constexpr std::array<float, 256> kE8m0Table = MakeE8m0Table(1.0f);

}  // namespace dsv4::DSV4_ISA

#ifdef DSV4_SIMD_AVX512
#include "ops/simd_avx512.h"
#endif

namespace dsv4::DSV4_ISA {

#if defined(DSV4_SIMD_AVX512)
#elif defined(DSV4_SIMD_AVX2)

struct Vec {
  __m256 v;
};

DSV4_INLINE Vec Zero() { return {_mm256_setzero_ps()}; }
DSV4_INLINE Vec Set(float x) { return {_mm256_set1_ps(x)}; }
DSV4_INLINE Vec Load(const float* p) { return {_mm256_loadu_ps(p)}; }
DSV4_INLINE void Store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
DSV4_INLINE Vec Add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
DSV4_INLINE Vec Sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
DSV4_INLINE Vec Mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
DSV4_INLINE Vec Div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
DSV4_INLINE Vec Fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
// `a`, loaded once for several uses. Without this GCC reads memory again for each use.
DSV4_INLINE Vec InRegister(Vec a) {
  asm("" : "+x"(a.v));
  return a;
}
// a > b ? a : b and a < b ? a : b: the second operand if one is NaN.
DSV4_INLINE Vec Max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
DSV4_INLINE Vec Min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }

// The sums of four vectors' lanes.
DSV4_INLINE void StoreSums(float* p, Vec a, Vec b, Vec c, Vec d) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a.v, b.v), _mm256_hadd_ps(c.v, d.v));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

// x * 2^(n / 2) * 2^(n - n / 2). `biased` holds n in the low bits of 1.5 * 2^23 + n; |n| < 250.
DSV4_INLINE Vec ScaleByPower(Vec x, Vec biased) {
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(biased.v), _mm256_set1_epi32(0x4B400000));
  const __m256i half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
  const __m256i low = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
  return {_mm256_mul_ps(_mm256_mul_ps(x.v, _mm256_castsi256_ps(low)), _mm256_castsi256_ps(high))};
}

DSV4_INLINE Vec LoadF32(const uint8_t* p) { return {_mm256_loadu_ps(reinterpret_cast<const float*>(p))}; }

DSV4_INLINE Vec LoadBf16(const uint8_t* p) {
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
}

// E4M3 codes as values divided by kE4m3Unit. As the bits of a half they are 2^-8 times their value, subnormals
// included, and the half-to-float conversion does the rest. 0x7F and 0xFF become NaN.
inline constexpr float kE4m3Unit = 256.0f;
DSV4_INLINE Vec LoadE4m3(const uint8_t* p) {
  const __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i largest = _mm_set1_epi16(0x7F);
  const __m128i half = _mm_slli_epi16(_mm_add_epi16(code, _mm_andnot_si128(largest, code)), 7);
  const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(code, largest), largest);
  return {_mm256_cvtph_ps(_mm_or_si128(half, nan))};
}

// Sixteen codes.
DSV4_INLINE void LoadE4m3(const uint8_t* p, Vec (&x)[2]) {
  const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i largest = _mm256_set1_epi16(0x7F);
  const __m256i half = _mm256_slli_epi16(_mm256_add_epi16(code, _mm256_andnot_si256(largest, code)), 7);
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(code, largest), largest);
  const __m256i bits = _mm256_or_si256(half, nan);
  x[0] = {_mm256_cvtph_ps(_mm256_castsi256_si128(bits))};
  x[1] = {_mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
}

// E2M1 codes as values divided by kE2m1Unit, which are whole numbers (a negative zero becomes zero). A byte shuffle
// looks up 16 of them.
inline constexpr float kE2m1Unit = 0.5f;
DSV4_INLINE __m128i LookUpE2m1(__m128i nibbles) {
  return _mm_shuffle_epi8(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), nibbles);
}
DSV4_INLINE Vec FromBytes(__m128i x) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x))}; }

// Eight codes of four bytes.
DSV4_INLINE Vec LoadE2m1(const uint8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  const __m128i bytes = _mm_cvtsi32_si128(bits), low = _mm_set1_epi8(15);
  const __m128i even = _mm_and_si128(bytes, low), odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), low);
  return FromBytes(LookUpE2m1(_mm_unpacklo_epi8(even, odd)));
}
// 32 codes of 16 bytes.
DSV4_INLINE void LoadE2m1(const uint8_t* p, Vec (&x)[4]) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), low = _mm_set1_epi8(15);
  const __m128i even = _mm_and_si128(bytes, low), odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), low);
  const __m128i first = LookUpE2m1(_mm_unpacklo_epi8(even, odd));
  const __m128i second = LookUpE2m1(_mm_unpackhi_epi8(even, odd));
  x[0] = FromBytes(first);
  x[1] = FromBytes(_mm_srli_si128(first, 8));
  x[2] = FromBytes(second);
  x[3] = FromBytes(_mm_srli_si128(second, 8));
}

#else

namespace stdx = std::experimental;
using Float4 = stdx::simd<float, stdx::simd_abi::deduce_t<float, 4>>;  // one register of SSE2 or NEON

struct Vec {
  Float4 lo, hi;
};

DSV4_INLINE Float4 LoadFloat4(const float* p) { return Float4(p, stdx::element_aligned); }
DSV4_INLINE Float4 MaxFloat4(Float4 a, Float4 b) {
  where(a > b, b) = a;
  return b;
}
DSV4_INLINE Float4 MinFloat4(Float4 a, Float4 b) {
  where(a < b, b) = a;
  return b;
}

DSV4_INLINE Vec Set(float x) { return {Float4(x), Float4(x)}; }
DSV4_INLINE Vec Zero() { return Set(0.0f); }
DSV4_INLINE Vec Load(const float* p) { return {LoadFloat4(p), LoadFloat4(p + 4)}; }
DSV4_INLINE void Store(float* p, Vec a) {
  a.lo.copy_to(p, stdx::element_aligned);
  a.hi.copy_to(p + 4, stdx::element_aligned);
}
DSV4_INLINE Vec Add(Vec a, Vec b) { return {a.lo + b.lo, a.hi + b.hi}; }
DSV4_INLINE Vec Sub(Vec a, Vec b) { return {a.lo - b.lo, a.hi - b.hi}; }
DSV4_INLINE Vec Mul(Vec a, Vec b) { return {a.lo * b.lo, a.hi * b.hi}; }
DSV4_INLINE Vec Div(Vec a, Vec b) { return {a.lo / b.lo, a.hi / b.hi}; }
DSV4_INLINE Vec Fma(Vec a, Vec b, Vec c) { return Add(Mul(a, b), c); }
DSV4_INLINE Vec InRegister(Vec a) { return a; }
DSV4_INLINE Vec Max(Vec a, Vec b) { return {MaxFloat4(a.lo, b.lo), MaxFloat4(a.hi, b.hi)}; }
DSV4_INLINE Vec Min(Vec a, Vec b) { return {MinFloat4(a.lo, b.lo), MinFloat4(a.hi, b.hi)}; }

DSV4_INLINE float SumOfLanes(Vec a) {
  float x[kLanes];
  Store(x, a);
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}
DSV4_INLINE void StoreSums(float* p, Vec a, Vec b, Vec c, Vec d) {
  p[0] = SumOfLanes(a);
  p[1] = SumOfLanes(b);
  p[2] = SumOfLanes(c);
  p[3] = SumOfLanes(d);
}

DSV4_INLINE Vec ScaleByPower(Vec x, Vec biased) {
  float values[kLanes], bits[kLanes];
  Store(values, x);
  Store(bits, biased);
  for (int i = 0; i < kLanes; ++i) {
    const int32_t n = std::bit_cast<int32_t>(bits[i]) - 0x4B400000, half = n >> 1;
    values[i] = values[i] * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((n - half + 127) << 23);
  }
  return Load(values);
}

DSV4_INLINE Vec LoadF32(const uint8_t* p) {
  float x[kLanes];
  std::memcpy(x, p, sizeof(x));
  return Load(x);
}

DSV4_INLINE Vec LoadBf16(const uint8_t* p) {
  uint16_t half[kLanes];
  std::memcpy(half, p, 16);
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = std::bit_cast<float>(static_cast<uint32_t>(half[i]) << 16);
  return Load(x);
}

inline constexpr float kE4m3Unit = 1.0f;
DSV4_INLINE Vec LoadE4m3(const uint8_t* p) {
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = kE4m3Table[p[i]];
  return Load(x);
}
DSV4_INLINE void LoadE4m3(const uint8_t* p, Vec (&x)[2]) {
  for (int i = 0; i < 2; ++i) x[i] = LoadE4m3(p + i * kLanes);
}

inline constexpr float kE2m1Unit = 1.0f;
DSV4_INLINE Vec LoadE2m1(const uint8_t* p) {
  float x[kLanes];
  for (int i = 0; i < kLanes / 2; ++i) {
    x[2 * i] = kE2m1Values[p[i] & 15];
    x[2 * i + 1] = kE2m1Values[p[i] >> 4];
  }
  return Load(x);
}
DSV4_INLINE void LoadE2m1(const uint8_t* p, Vec (&x)[4]) {
  for (int i = 0; i < 4; ++i) x[i] = LoadE2m1(p + i * kLanes / 2);
}

#endif

// Block scales of E2M1 codes, for the unit of LoadE2m1.
alignas(64) inline constexpr std::array<float, 256> kE4m3ScaleOfE2m1 = MakeE4m3Table(kE2m1Unit);
alignas(64) inline constexpr std::array<float, 256> kE8m0ScaleOfE2m1 = MakeE8m0Table(kE2m1Unit);

DSV4_INLINE float Sum(Vec a) {
  float sums[4];
  StoreSums(sums, a, a, a, a);
  return sums[0];
}

// The first n < kLanes floats at p; the other lanes are 0.
DSV4_INLINE Vec LoadPartial(const float* p, int64_t n) {
  float x[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) x[i] = p[i];
  return Load(x);
}
DSV4_INLINE void StorePartial(float* p, Vec a, int64_t n) {
  float x[kLanes];
  Store(x, a);
  for (int64_t i = 0; i < n; ++i) p[i] = x[i];
}

// e^x to about 1 ulp: 0 below -104, infinity above 88.73, NaN stays NaN. Range reduction in two parts (355/512 times
// an integer below 2^15 is exact), a polynomial on [-ln2/2, ln2/2] (Cephes' expf), and the power of two in two steps
// so that subnormal results round once.
DSV4_INLINE Vec Exp(Vec x) {
  x = Min(Set(89.0f), Max(Set(-105.0f), x));
  const Vec biased = Fma(x, Set(1.44269504088896341f), Set(0x1.8p23f));
  const Vec n = Sub(biased, Set(0x1.8p23f));
  const Vec r = Fma(n, Set(2.12194440e-4f), Fma(n, Set(-0.693359375f), x));
  Vec p = Set(1.9875691500e-4f);
  p = Fma(p, r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  p = Add(Fma(p, Mul(r, r), r), Set(1.0f));
  return ScaleByPower(p, biased);
}

}  // namespace dsv4::DSV4_ISA
