#include "ops/linear/integer/integer_rows.h"

#include <algorithm>
#include <cstring>

#include "tensor/codec/weight.h"

namespace dsv4::DSV4_ISA {

namespace {

// 128 weights of a row: integers (twice their value) arranged as IntegerBlock's codes, and the lanes' scales times
// kScaleUnit (NVFP4: E4M3 codes as the bits of a half are 2^-8 times their value).
//   Dot(w, x)  the lanes' sums of products

#if defined(DSV4_SIMD_AVX512)

struct Weights {
  __m512i even, odd;  // plus 12
  __m512 scale;
};

template <WeightFormat F>
DSV4_INLINE __m512 LaneScales(const uint8_t* p) {
  if constexpr (F == WeightFormat::kNvfp4) {
    int64_t bits;
    std::memcpy(&bits, p, 8);
    const __m256i at = _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1,
                                        5, -1, 6, -1, 6, -1, 7, -1, 7);
    const __m256i half = _mm256_srai_epi16(_mm256_shuffle_epi8(_mm256_set1_epi64x(bits), at), 1);
    return _mm512_cvtph_ps(_mm256_and_si256(half, _mm256_set1_epi16(static_cast<int16_t>(0xBF80))));
  } else {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    const __m128i at = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i code = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(_mm_cvtsi32_si128(bits), at));
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_slli_epi32(code, 23), _mm512_set1_epi32(0x00400000)));
  }
}

template <WeightFormat F>
DSV4_INLINE Weights LoadWeights(const uint8_t* codes, const uint8_t* scales) {
  const __m512i packed = _mm512_loadu_si512(codes), low = _mm512_set1_epi8(15);
  const __m512i table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  return {_mm512_shuffle_epi8(table, _mm512_and_si512(packed, low)),
          _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(packed, 4), low)), LaneScales<F>(scales)};
}

// sums + products of the codes with one byte of the inputs, added per lane.
DSV4_INLINE __m512i Dot(const Weights& w, const int8_t* x, __m512i sums) {
  const __m512i even = _mm512_loadu_si512(x), odd = _mm512_loadu_si512(x + 64);
#ifdef __AVX512VNNI__
  return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, w.even, even), w.odd, odd);
#else
  // Sums of four products, at most 4 * 24 * 128: nothing saturates.
  const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16(w.even, even), _mm512_maddubs_epi16(w.odd, odd));
  return _mm512_add_epi32(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)), sums);
#endif
}

template <int Bytes>
DSV4_INLINE Vec AddProducts(const Weights& w, const IntegerBlock<Bytes>& x, Vec acc) {
  const __m512i offset = _mm512_loadu_si512(x.offset);
  __m512i sums = Dot(w, x.bytes[0], Bytes == 1 ? offset : _mm512_setzero_si512());
  for (int b = 1; b < Bytes; ++b) {
    sums = _mm512_slli_epi32(sums, 8);
    sums = Dot(w, x.bytes[b], b == Bytes - 1 ? _mm512_add_epi32(sums, offset) : sums);
  }
  return Fma({_mm512_cvtepi32_ps(sums)}, Mul({w.scale}, Load(x.scale)), acc);
}

#elif defined(DSV4_SIMD_AVX2)

struct Weights {
  __m256i codes[4];  // plus 12
  __m256 scale;
};

template <WeightFormat F>
DSV4_INLINE __m256 LaneScales(const uint8_t* p) {
  if constexpr (F == WeightFormat::kNvfp4) {
    const __m128i at = _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 2, -1, 3, -1, 6, -1, 7);
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i half = _mm_srai_epi16(_mm_shuffle_epi8(bytes, at), 1);
    return _mm256_cvtph_ps(_mm_and_si128(half, _mm_set1_epi16(static_cast<int16_t>(0xBF80))));
  } else {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    const __m256i at = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1, 1, -1,
                                        -1, -1, 1, -1, -1, -1, 3, -1, -1, -1, 3);
    const __m256i code = _mm256_srli_epi32(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), at), 1);
    return _mm256_castsi256_ps(_mm256_max_epi32(code, _mm256_set1_epi32(0x00400000)));
  }
}

template <WeightFormat F>
DSV4_INLINE Weights LoadWeights(const uint8_t* codes, const uint8_t* scales) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  Weights w;
  for (int i = 0; i < 2; ++i) {
    const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * i));
    w.codes[2 * i] = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, low));
    w.codes[2 * i + 1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(packed, 4), low));
  }
  w.scale = LaneScales<F>(scales);
  return w;
}

// Products of the codes with one byte of the inputs, added per lane.
DSV4_INLINE __m256i Dot(const Weights& w, const int8_t* x) {
  const auto products = [&](int i) {
    return _mm256_maddubs_epi16(w.codes[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(x + 32 * i)));
  };
  // Sums of four products, then of eight: at most 8 * 24 * 128 < 2^15.
  const __m256 first = _mm256_castsi256_ps(_mm256_add_epi16(products(0), products(1)));
  const __m256 second = _mm256_castsi256_ps(_mm256_add_epi16(products(2), products(3)));
  const __m256i sums = _mm256_add_epi16(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88)),
                                        _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xDD)));
  return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

template <int Bytes>
DSV4_INLINE Vec AddProducts(const Weights& w, const IntegerBlock<Bytes>& x, Vec acc) {
  __m256i sums = Dot(w, x.bytes[0]);
  for (int b = 1; b < Bytes; ++b) sums = _mm256_add_epi32(_mm256_slli_epi32(sums, 8), Dot(w, x.bytes[b]));
  sums = _mm256_add_epi32(sums, _mm256_load_si256(reinterpret_cast<const __m256i*>(x.offset)));
  return Fma({_mm256_cvtepi32_ps(sums)}, Mul({w.scale}, {_mm256_load_ps(x.scale)}), acc);
}

#else

struct Weights {
  int8_t codes[kIntegerStep];
  float scale[kLanes];
};

template <WeightFormat F>
DSV4_INLINE Weights LoadWeights(const uint8_t* codes, const uint8_t* scales) {
  constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  Weights w;
  for (int64_t i = 0; i < kIntegerStep / 2; ++i) {
    w.codes[2 * i] = kTwice[codes[i] & 15];
    w.codes[2 * i + 1] = kTwice[codes[i] >> 4];
  }
  for (int64_t l = 0; l < kLanes; ++l) {
    w.scale[l] = F == WeightFormat::kNvfp4 ? kE4m3Table[scales[l]] : kE8m0Table[scales[l / 2]];
  }
  return w;
}

template <int Bytes>
DSV4_INLINE Vec AddProducts(const Weights& w, const IntegerBlock<Bytes>& x, Vec acc) {
  float dots[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) {
    uint32_t dot = 0;  // intermediate sums are modulo 2^32
    for (int b = 0; b < Bytes; ++b) {
      int32_t sum = 0;
      for (int64_t i = l * kLaneColumns; i < (l + 1) * kLaneColumns; ++i) sum += w.codes[i] * x.bytes[b][i];
      dot = dot * 256 + static_cast<uint32_t>(sum);
    }
    dots[l] = static_cast<float>(static_cast<int32_t>(dot));
  }
  return Fma(Load(dots), Mul(Load(w.scale), Load(x.scale)), acc);
}

#endif

#if defined(DSV4_SIMD_AVX512) || defined(DSV4_SIMD_AVX2)
constexpr float kE4m3ScaleUnit = 256.0f;
#else
constexpr float kE4m3ScaleUnit = 1.0f;
#endif

template <WeightFormat F>
struct Format {
  static constexpr int64_t kBlock = F == WeightFormat::kNvfp4 ? kNvfp4BlockSize : kMxfp4BlockSize;
  static constexpr int64_t kStepScales = kIntegerStep / kBlock;
  static constexpr float kUnit = 0.5f * (F == WeightFormat::kNvfp4 ? kE4m3ScaleUnit : 1.0f);
  static constexpr uint8_t kNan = F == WeightFormat::kNvfp4 ? 0x7F : 0xFF;  // also the largest code without its sign
};

// Codes are prefetched this far ahead of their use, across rows, which are contiguous in memory.
constexpr int64_t kPrefetchBytes = 2048;

// Row n times T tokens. One row at a time reads memory as one stream.
template <WeightFormat F, int Bytes, int T>
void MultiplyRow(const IntegerProduct& p, int64_t n, int64_t begin, int64_t first_token) {
  using Format = Format<F>;
  const QuantTensor& w = *p.w;
  const int64_t k_dim = w.cols, num_scales = k_dim / Format::kBlock;
  const uint8_t* codes = w.codes + n * (k_dim / 2);
  const uint8_t* scales = w.block_scale + n * num_scales;
  const IntegerBlock<Bytes>* x[T];
  for (int t = 0; t < T; ++t) x[t] = reinterpret_cast<const IntegerBlock<Bytes>*>(p.x[first_token + t] + p.x_offset);
  Vec acc[T];
  for (int t = 0; t < T; ++t) acc[t] = Zero();
  const int64_t whole = k_dim / kIntegerStep;
  for (int64_t b = 0; b < whole; ++b) {
    const uint8_t* at = codes + b * (kIntegerStep / 2);
    __builtin_prefetch(at + kPrefetchBytes);
    const Weights weights = LoadWeights<F>(at, scales + b * Format::kStepScales);
    for (int t = 0; t < T; ++t) acc[t] = AddProducts(weights, x[t][b], acc[t]);
  }
  if (const int64_t rest = k_dim - whole * kIntegerStep; rest > 0) {
    uint8_t last_codes[kIntegerStep / 2] = {}, last_scales[8] = {};
    std::memcpy(last_codes, codes + whole * (kIntegerStep / 2), static_cast<size_t>(rest / 2));
    std::memcpy(last_scales, scales + whole * Format::kStepScales, static_cast<size_t>(rest / Format::kBlock));
    const Weights weights = LoadWeights<F>(last_codes, last_scales);
    for (int t = 0; t < T; ++t) acc[t] = AddProducts(weights, x[t][whole], acc[t]);
  }
  uint8_t largest = 0;
  for (int64_t i = 0; i < num_scales; ++i) largest = std::max(largest, static_cast<uint8_t>(scales[i] & Format::kNan));
  const float scale = largest == Format::kNan ? std::numeric_limits<float>::quiet_NaN()
                                              : w.global_scale * Format::kUnit;
  for (int t = 0; t < T; ++t) p.y[first_token + t][p.y_offset + n - begin] = Sum(acc[t]) * scale;
}

constexpr int64_t kMostTokens = 8;  // accumulators and the weights of a step fit in the registers

constexpr int64_t kRowsInCache = 16;  // rows that all groups of tokens multiply in turn

template <WeightFormat F, int Bytes, int T>
void MultiplyBlock(const IntegerProduct& p, int64_t begin, int64_t n, int64_t end, int64_t first_token) {
  for (; n < end; ++n) MultiplyRow<F, Bytes, T>(p, n, begin, first_token);
}

template <WeightFormat F, int Bytes>
void MultiplyRowsOf(const IntegerProduct& p, int64_t begin, int64_t end) {
  const int64_t step = p.num_tokens <= kMostTokens ? end - begin : kRowsInCache;
  for (int64_t n = begin; n < end; n += step) {
    const int64_t last = std::min(end, n + step);
    for (int64_t t = 0; t < p.num_tokens; t += kMostTokens) {
      switch (std::min(kMostTokens, p.num_tokens - t)) {
        case 1:
          MultiplyBlock<F, Bytes, 1>(p, begin, n, last, t);
          break;
        case 2:
          MultiplyBlock<F, Bytes, 2>(p, begin, n, last, t);
          break;
        case 3:
          MultiplyBlock<F, Bytes, 3>(p, begin, n, last, t);
          break;
        case 4:
          MultiplyBlock<F, Bytes, 4>(p, begin, n, last, t);
          break;
        case 5:
          MultiplyBlock<F, Bytes, 5>(p, begin, n, last, t);
          break;
        case 6:
          MultiplyBlock<F, Bytes, 6>(p, begin, n, last, t);
          break;
        case 7:
          MultiplyBlock<F, Bytes, 7>(p, begin, n, last, t);
          break;
        default:
          MultiplyBlock<F, Bytes, 8>(p, begin, n, last, t);
          break;
      }
    }
  }
}

}  // namespace

void MultiplyRows(const IntegerProduct& p, int64_t begin, int64_t end) {
  constexpr WeightFormat kNvfp4 = WeightFormat::kNvfp4, kMxfp4 = WeightFormat::kMxfp4;
  const bool nvfp4 = p.w->format == kNvfp4;
  switch (IntegerBytes(p.activation)) {
    case 1:
      return nvfp4 ? MultiplyRowsOf<kNvfp4, 1>(p, begin, end) : MultiplyRowsOf<kMxfp4, 1>(p, begin, end);
    case 2:
      return nvfp4 ? MultiplyRowsOf<kNvfp4, 2>(p, begin, end) : MultiplyRowsOf<kMxfp4, 2>(p, begin, end);
    default:
      return nvfp4 ? MultiplyRowsOf<kNvfp4, 3>(p, begin, end) : MultiplyRowsOf<kMxfp4, 3>(p, begin, end);
  }
}

}  // namespace dsv4::DSV4_ISA
