// The reference's values, bit for bit, 16 at a time, so that the disk and not the generator limits writing a
// checkpoint.
#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "ops/fill_weight/fill_weight.h"
#include "ops/simd.h"
#include "tensor/codec/bf16.h"
#include "tensor/codec/fp4.h"
#include "tensor/codec/fp8.h"

namespace dsv4::DSV4_ISA {

namespace {

constexpr int64_t kRun = 16;

#ifdef DSV4_SIMD_AVX2

// Low halves of 64-bit products; `b` is the same for all, passed as its two halves.
DSV4_INLINE __m256i Multiply64(__m256i a, __m256i b_low, __m256i b_high) {
  const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b_low),
                                         _mm256_mul_epu32(a, b_high));
  return _mm256_add_epi64(_mm256_mul_epu32(a, b_low), _mm256_slli_epi64(cross, 32));
}

DSV4_INLINE __m256i Multiply64(__m256i a, uint64_t b) {
  return Multiply64(a, _mm256_set1_epi64x(static_cast<int64_t>(b & 0xffffffffu)),
                    _mm256_set1_epi64x(static_cast<int64_t>(b >> 32)));
}

// Sums of the bytes of MixBits(x), as 64-bit integers.
DSV4_INLINE __m256i MixedByteSums(__m256i x) {
  x = Multiply64(_mm256_xor_si256(x, _mm256_srli_epi64(x, 30)), 0xbf58476d1ce4e5b9u);
  x = Multiply64(_mm256_xor_si256(x, _mm256_srli_epi64(x, 27)), 0x94d049bb133111ebu);
  x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 31));
  return _mm256_sad_epu8(x, _mm256_setzero_si256());
}

// std * FillValue(seed, index + i) for i < 16. A counter's word is MixBits(MixBits(seed + golden) + golden * (counter +
// 1)).
DSV4_INLINE void FillRun(uint64_t mixed_seed, uint64_t index, float std, float* out) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const auto at = [&](uint64_t i) { return static_cast<int64_t>(mixed_seed + kGolden * (index + i + 1)); };
  const __m256i step = _mm256_set1_epi64x(static_cast<int64_t>(4 * kGolden));
  __m256i x = _mm256_setr_epi64x(at(0), at(1), at(2), at(3));
  for (int half = 0; half < 2; ++half) {
    const __m256i a = MixedByteSums(x);
    x = _mm256_add_epi64(x, step);
    const __m256i b = MixedByteSums(x);
    x = _mm256_add_epi64(x, step);
    // The low words of a's four lanes, then of b's.
    // a0 a1 b0 b1 a2 a3 b2 b3
    const __m256 mixed = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);
    const __m256i sums = _mm256_permute4x64_epi64(_mm256_castps_si256(mixed), 0xD8);
    const __m256 centred = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums, _mm256_set1_epi32(1020)));
    _mm256_storeu_ps(out + 8 * half,
                     _mm256_mul_ps(_mm256_set1_ps(std), _mm256_mul_ps(centred, _mm256_set1_ps(0.0047841f))));
  }
}

// E2M1 codes of x / unit, 8 as 32-bit integers: the number of rounding bounds that |x| has passed, and the sign.
DSV4_INLINE __m256i E2m1Codes(const float* x, __m256 unit) {
  const __m256 q = _mm256_div_ps(_mm256_loadu_ps(x), unit);
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), q);
  __m256i code = _mm256_setzero_si256();
  const auto above = [&](float bound) {
    code = _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(magnitude, _mm256_set1_ps(bound), _CMP_GT_OQ)));
  };
  const auto at_least = [&](float bound) {
    code = _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(magnitude, _mm256_set1_ps(bound), _CMP_GE_OQ)));
  };
  above(0.25f), at_least(0.75f), above(1.25f), at_least(1.75f), above(2.5f), at_least(3.5f), above(5.0f);
  return _mm256_or_si256(code, _mm256_slli_epi32(_mm256_srli_epi32(_mm256_castps_si256(q), 31), 3));
}

DSV4_INLINE void StoreE2m1(const float* x, float unit, uint8_t* codes) {
  const __m256 units = _mm256_set1_ps(unit);
  const __m256i words = _mm256_packus_epi32(E2m1Codes(x, units), E2m1Codes(x + 8, units));  // by halves of 128 bits
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);                            // 16-bit codes 0 .. 15
  const __m256i pairs = _mm256_or_si256(ordered, _mm256_srli_epi32(ordered, 12));           // byte 0 of each pair
  const __m256i bytes = _mm256_shuffle_epi8(
      pairs, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                              0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  const auto low = static_cast<uint32_t>(_mm256_extract_epi32(bytes, 0)),
             high = static_cast<uint32_t>(_mm256_extract_epi32(bytes, 4));
  std::memcpy(codes, &low, 4);
  std::memcpy(codes + 4, &high, 4);
}

DSV4_INLINE float LargestOfRun(const float* x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 m = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x)),
                                 _mm256_andnot_ps(sign, _mm256_loadu_ps(x + 8)));
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}

#else

void FillRun(uint64_t mixed_seed, uint64_t index, float std, float* out) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  for (uint64_t i = 0; i < kRun; ++i) {
    uint64_t bits = MixBits(mixed_seed + kGolden * (index + i + 1));
    int sum = -1020;
    for (int b = 0; b < 8; ++b, bits >>= 8) sum += static_cast<int>(bits & 255);
    out[i] = std * (static_cast<float>(sum) * 0.0047841f);
  }
}

void StoreE2m1(const float* x, float unit, uint8_t* codes) {
  for (int64_t i = 0; i < kRun; i += 2)
    codes[i / 2] = static_cast<uint8_t>(F32ToE2m1(x[i] / unit) | F32ToE2m1(x[i + 1] / unit) << 4);
}

float LargestOfRun(const float* x) {
  float largest = 0;
  for (int64_t i = 0; i < kRun; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

#endif  // DSV4_SIMD_AVX2

struct Fill {
  const FillWeightArgs& a;
  uint64_t mixed_seed;
  float fp8_unit;  // 2^-exponent of the FP8 scale

  // Fills columns k .. k + 15 of row n; for MXFP4 and tight formats, k .. k + 31.
  void Run(int64_t n, int64_t k) const {
    const QuantTensor& w = a.w;
    const auto index = static_cast<uint64_t>(n * w.cols + k);
    float x[2 * kRun];
    FillRun(mixed_seed, index, a.std, x);
    uint8_t* out = a.codes + n * w.row_bytes() + k * w.row_bytes() / w.cols;
    switch (w.format) {
      case WeightFormat::kNvfp4: {
        uint8_t& scale = a.block_scale[n * (w.cols / kNvfp4BlockSize) + k / kNvfp4BlockSize];
        scale = F32ToE4m3(LargestOfRun(x) / 6.0f / w.global_scale);
        StoreE2m1(x, E4m3ToF32(scale) * w.global_scale, out);
        break;
      }
      case WeightFormat::kMxfp4: {
        FillRun(mixed_seed, index + kRun, a.std, x + kRun);
        const int exponent = CeilLog2(std::max(std::max(LargestOfRun(x), LargestOfRun(x + kRun)) / 6.0f, 0x1p-100f));
        a.block_scale[n * (w.cols / kMxfp4BlockSize) + k / kMxfp4BlockSize] = E8m0FromExponent(exponent);
        StoreE2m1(x, Exp2Int(exponent), out);
        StoreE2m1(x + kRun, Exp2Int(exponent), out + kRun / 2);
        break;
      }
      case WeightFormat::kMxfp4Tight:
      case WeightFormat::kNvfp4Tight:
        Tight(index, out);
        break;
      default:
        Plain(x, std::min(kRun, w.cols - k), out);
    }
  }

  void Tight(uint64_t index, uint8_t* out) const {
    const float std = a.std * kFillSpread * Exp2Int(-FillShift(a.seed, index / kMxfp4BlockSize));
    float x[2 * kRun];
    FillRun(mixed_seed, index, std, x);
    FillRun(mixed_seed, index + kRun, std, x + kRun);
    const float largest = std::max(LargestOfRun(x), LargestOfRun(x + kRun));
    const int exponent = std::max(CeilLog2(std::max(largest / 6.0f, 0x1p-100f)), int{a.w.exponent_base});
    if (InfoOf(a.w.format).global_scale) {
      const uint8_t scale = F32ToE4m3(Exp2Int(exponent - a.w.exponent_base));
      a.block_scale[index / 16] = a.block_scale[index / 16 + 1] = scale;
    } else {
      a.block_scale[index / 32] = E8m0FromExponent(exponent);
    }
    StoreE2m1(x, Exp2Int(exponent), out);
    StoreE2m1(x + kRun, Exp2Int(exponent), out + kRun / 2);
  }

  void Plain(const float* x, int64_t count, uint8_t* out) const {
    if (a.w.format == WeightFormat::kF32) {
      std::memcpy(out, x, static_cast<size_t>(4 * count));
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (a.w.format == WeightFormat::kFp8Block) {
        out[i] = F32ToE4m3(x[i] * fp8_unit);
      } else {
        const uint16_t half = F32ToBf16(x[i]);
        std::memcpy(out + 2 * i, &half, 2);
      }
    }
  }
};

}  // namespace

void FillWeightCpu(const ExecContext& ctx, const FillWeightArgs& a) {
  const QuantTensor& w = a.w;
  const int fp8_exponent = CeilLog2(a.std * kFillRange / kE4m3Max);
  const Fill fill{a, MixBits(a.seed + 0x9e3779b97f4a7c15u), Exp2Int(-fp8_exponent)};
  const int64_t step = w.format == WeightFormat::kMxfp4 || IsTight(w.format) ? kMxfp4BlockSize : kRun;
  ParallelFor(ctx.pool, w.rows, /*grain=*/1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t k = 0; k < w.cols; k += step) fill.Run(n, k);
    }
  });
  if (w.format != WeightFormat::kFp8Block) return;
  const float scale = Exp2Int(fp8_exponent);
  const int64_t num_scales = CeilDiv(w.rows, kFp8BlockSize) * CeilDiv(w.cols, kFp8BlockSize);
  for (int64_t i = 0; i < num_scales; ++i) {
    if (w.scale_dtype == DType::kF8E8M0) {
      a.block_scale[i] = E8m0FromExponent(fp8_exponent);
    } else {
      std::memcpy(a.block_scale + 4 * i, &scale, 4);
    }
  }
}

}  // namespace dsv4::DSV4_ISA
