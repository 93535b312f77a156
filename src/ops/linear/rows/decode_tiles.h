// A weight row as in decode.h, for a matrix in tensor cores' tiles (ops/pack_weight/pack_weight.h). It yields the same
// numbers in the same order of columns, so sums have the same bits as with the matrix in rows. FP8's scales are in
// block_scale.
//
// Rows g and g + 8 of a tile share cache lines, so products process one after the other (At).
#pragma once

#include "ops/linear/rows/decode.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::DSV4_ISA {

// The location of a row's codes: lane 4 g + t of every tile has columns 16 t .. 16 t + 15.
struct PlaceInTiles {
  const uint8_t* tiles;  // the row's first tile
  int64_t tile_bytes, g, r, tiled_cols;

  DSV4_INLINE PlaceInTiles(const QuantTensor& w, int64_t n, int64_t bytes)
      : tile_bytes(bytes), g(n % 8), r(n % kTileRows16 / 8), tiled_cols(CeilDiv(w.cols, kTileCols64) * kTileCols64) {
    tiles = w.codes + n / kTileRows16 * (tiled_cols / kTileCols64) * tile_bytes;
  }
  DSV4_INLINE const uint8_t* TileOf(int64_t k) const { return tiles + k / kTileCols64 * tile_bytes; }
  DSV4_INLINE int64_t LaneOf(int64_t k) const { return 4 * g + k % kTileCols64 / 16; }

  // The `i`-th row: in a tile row g, then g + 8. A matrix with an incomplete last tile has its rows in order.
  static DSV4_INLINE int64_t At(const QuantTensor& w, int64_t i) {
    if (w.rows % kTileRows16 != 0) return i;
    const int64_t in_tile = i % kTileRows16;
    return i - in_tile + in_tile / 2 + in_tile % 2 * 8;
  }
};

// Codes of two bytes and of one byte, put in the order of columns; `kCount` of them.
template <int64_t kCount>
DSV4_INLINE void GatherBf16(const PlaceInTiles& p, int64_t k, uint8_t* to) {
  for (int64_t c = k; c < k + kCount; c += 2) {
    const int64_t in_lane = c % 16;
    std::memcpy(to + 2 * (c - k), p.TileOf(c) + in_lane / 4 * 512 + 16 * p.LaneOf(c) + in_lane % 4 / 2 * 8 + 4 * p.r,
                4);
  }
}
template <int64_t kCount>
DSV4_INLINE void GatherFp8(const PlaceInTiles& p, int64_t k, uint8_t* to) {
  constexpr uint64_t kWords = 0x0000000100000001u;
  for (int64_t c = k; c < k + kCount; c += 8) {
    uint64_t words;
    std::memcpy(&words, p.TileOf(c) + 512 * p.r + 16 * p.LaneOf(c) + c % 16, 8);
    words = (words & (kWords * 0xFF0000FF)) | ((words >> 8) & (kWords * 0xFF00)) | ((words & (kWords * 0xFF00)) << 8);
    std::memcpy(to + (c - k), &words, 8);
  }
}

template <typename Plain, int64_t Bytes, void (*Gather)(const PlaceInTiles&, int64_t, uint8_t*),
          void (*GatherAll)(const PlaceInTiles&, int64_t, uint8_t*)>
struct PlainTileRow {
  static constexpr bool kInTiles = true;
  static constexpr int kVectors = Plain::kVectors;
  static constexpr int64_t kChunk = Plain::kChunk;
  static constexpr bool kChunkScale = Plain::kChunkScale;
  static constexpr int64_t kCodeBits = Plain::kCodeBits;
  static constexpr float kUnit = Plain::kUnit;
  static float ChunkScale(const QuantTensor& w, int64_t n, int64_t k) {
    return LoadUnaligned<float>(w.block_scale, n / kTileRows16 * CeilDiv(w.cols, kFp8BlockSize) + k / kFp8BlockSize);
  }
  static constexpr int64_t Whole(int64_t k_dim) { return Plain::Whole(k_dim); }
  static DSV4_INLINE int64_t At(const QuantTensor& w, int64_t i) { return PlaceInTiles::At(w, i); }

  PlaceInTiles place;

  DSV4_INLINE PlainTileRow(const QuantTensor& w, int64_t n) : place(w, n, kTileCols64 * kTileRows16 * Bytes) {}
  DSV4_INLINE Vec Load(int64_t k) const {
    uint8_t codes[kLanes * Bytes];
    Gather(place, k, codes);
    return Bytes == 2 ? LoadBf16(codes) : LoadE4m3(codes);
  }
  DSV4_INLINE void Load(int64_t k, Vec (&x)[kVectors]) const {
    if constexpr (kVectors == 1) {
      x[0] = Load(k);
    } else {
      uint8_t codes[kVectors * kLanes * Bytes];
      GatherAll(place, k, codes);
      LoadE4m3(codes, x);
    }
  }
  DSV4_INLINE Vec LoadTail(int64_t k, int64_t) const { return Load(k); }  // zeros follow in the tile
  DSV4_INLINE void Prefetch(int64_t k, int64_t n) const {
    for (int64_t c = k; c < std::min(k + n, place.tiled_cols); c += kTileCols64) {
      for (int64_t part = 0; part < 2 * Bytes; ++part) __builtin_prefetch(place.TileOf(c) + 512 * part + 64 * place.g);
    }
  }
};
using Bf16TileRow = PlainTileRow<Bf16Row, 2, GatherBf16<kLanes>, GatherBf16<kLanes>>;
using Fp8TileRow = PlainTileRow<Fp8Row, 1, GatherFp8<kLanes>, GatherFp8<2 * kLanes>>;

// The values of TileScale's bytes: 5 exponent bits (bias 21), 3 mantissa bits, no subnormals.
constexpr std::array<float, 256> MakeTileScaleTable() {
  std::array<float, 256> table{};
  for (uint32_t bits = 1; bits < 255; ++bits)
    table[bits] = std::bit_cast<float>(((bits >> 3) + 106) << 23 | (bits & 7u) << 20);
  table[255] = std::bit_cast<float>(0x7FC00000u);
  return table;
}
alignas(64) inline constexpr std::array<float, 256> kTileScaleTable = MakeTileScaleTable();

// The factor of the codes of the 16 columns that begin at k.
template <WeightFormat F>
DSV4_INLINE float FactorInTile(const PlaceInTiles& p, int64_t k) {
  const auto lane = static_cast<int>(p.LaneOf(k));
  const uint8_t byte = p.TileOf(k)[ScalesOfLane(F, lane) + (IsTight(F) ? 0 : p.r)];
  if constexpr (IsTight(F)) return std::bit_cast<float>((127u + (byte >> (4 * p.r) & 15u)) << 23);
  return F == WeightFormat::kMxfp4 ? kE8m0Table[byte] : kTileScaleTable[byte];
}

// The constants of Fp4TileRow for every instruction set.
template <WeightFormat F>
struct Fp4InTiles {
  static constexpr bool kInTiles = true;
  static constexpr int64_t kChunk = 256, kCodeBits = 4, kBytes = TileBytes(F);
  static constexpr bool kChunkScale = false;
  static constexpr float kUnit = 1.0f;
  static constexpr int64_t Whole(int64_t k_dim) { return NumPositions(k_dim, OrderOf(F)); }
  static DSV4_INLINE int64_t At(const QuantTensor& w, int64_t i) { return PlaceInTiles::At(w, i); }
  DSV4_INLINE Vec LoadTail(int64_t, int64_t) const { return Zero(); }  // whole blocks: there is no tail
};

#if defined(DSV4_SIMD_AVX512)

// Loads 128 columns at a time, from two tiles. A vector's lane is a word, so it has eight neighbouring columns, as in
// Fp4Row.
template <WeightFormat F>
struct Fp4TileRow : Fp4InTiles<F> {
  static constexpr int kVectors = 8;
  using Fp4InTiles<F>::kBytes;

  const uint8_t *codes, *scales;  // of the row, in its first tile
  int64_t r, tiled_cols;

  DSV4_INLINE Fp4TileRow(const QuantTensor& w, int64_t n) {
    const PlaceInTiles place(w, n, kBytes);
    codes = place.tiles + 64 * place.g, scales = place.tiles + ScalesOfLane(F, static_cast<int>(4 * place.g));
    r = place.r, tiled_cols = place.tiled_cols;
  }
  DSV4_INLINE Vec Load(int64_t k) const {
    Vec x[8];
    Load(k / kOrderedBlock * kOrderedBlock, x);
    return x[k % kOrderedBlock / kLanes];
  }
  // Zeros after the end of the tiles.
  DSV4_INLINE void Load(int64_t k, Vec (&x)[8]) const {
    const int64_t tile = (k >> 6) * kBytes, next = k + kTileCols64 < tiled_cols ? tile + kBytes : -1;
    const __m512i first = _mm512_loadu_si512(codes + tile),
                  second = next >= 0 ? _mm512_loadu_si512(codes + next) : _mm512_setzero_si512();
    const __m512i numbers = _mm512_add_epi64(_mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), _mm512_set1_epi64(r));
    const __m512i words = _mm512_permutex2var_epi64(first, numbers, second);
    const __m512 factors = Factors(scales + tile, scales + (next >= 0 ? next : tile));
    // A lookup reads four bits. The sign is six bits too high for it.
    const __m512i signs = _mm512_srli_epi32(words, 6);
    const __m512i outer = Select(words, signs, 0x02080208), middle = Select(words, signs, 0x00400040);
    const auto column = [&](__m512i four) { return Vec{_mm512_mul_ps(LookUpE2m1(four).v, factors)}; };
    x[0] = column(_mm512_srli_epi32(outer, 6));
    x[1] = column(_mm512_srli_epi32(outer, 22));
    x[2] = column(_mm512_srli_epi32(middle, 3));
    x[3] = column(_mm512_srli_epi32(middle, 19));
    x[4] = column(outer);
    x[5] = column(_mm512_srli_epi32(outer, 16));
    const __m512i fourth = FourthPairs(words);
    x[6] = column(fourth);
    x[7] = column(_mm512_srli_epi32(fourth, 16));
  }
  DSV4_INLINE void Prefetch(int64_t k, int64_t n) const {
    for (int64_t c = k; c < std::min(k + n, tiled_cols); c += kTileCols64) {
      __builtin_prefetch(codes + (c >> 6) * kBytes);
      __builtin_prefetch(scales + (c >> 6) * kBytes);
    }
  }

 private:
  // Bits of `b` where the mask has ones, bits of `a` elsewhere.
  static DSV4_INLINE __m512i Select(__m512i a, __m512i b, int mask) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32(mask), 0xD8);
  }
  // The fourth pairs' codes in bits 0 to 3 of every half, collected from both words of a row as in UnplaceFp4.
  static DSV4_INLINE __m512i FourthPairs(__m512i q) {
    const auto put = [](__m512i to, __m512i from, int64_t bits) {  // in both halves of a word
      return _mm512_ternarylogic_epi64(to, from, _mm512_set1_epi64(bits | bits << 16), 0xD8);
    };
    __m512i all = _mm512_srli_epi64(q, 13);
    all = put(all, _mm512_srli_epi64(q, 9), 4);
    all = put(all, _mm512_srli_epi64(q, 43), 8);
    all = put(all, _mm512_srli_epi64(q, 11), int64_t{5} << 32);
    all = put(all, _mm512_slli_epi64(q, 23), int64_t{2} << 32);
    return put(all, _mm512_srli_epi64(q, 7), int64_t{8} << 32);
  }
  // The factor of every word, from its tile's scales.
  DSV4_INLINE __m512 Factors(const uint8_t* tile, const uint8_t* next) const {
    if constexpr (IsTight(F)) {
      uint16_t low, high;
      std::memcpy(&low, tile, 2), std::memcpy(&high, next, 2);
      const __m128i bytes = _mm_cvtsi32_si128(static_cast<int>(low | static_cast<uint32_t>(high) << 16));
      const __m512i both = _mm512_cvtepu8_epi32(
          _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)));
      const __m512i exponents = _mm512_and_si512(_mm512_srl_epi32(both, _mm_cvtsi32_si128(static_cast<int>(4 * r))),
                                                 _mm512_set1_epi32(15));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(exponents, _mm512_set1_epi32(127)), 23));
    } else {
      uint64_t low, high;
      std::memcpy(&low, tile, 8), std::memcpy(&high, next, 8);
      const __m128i numbers = _mm_add_epi8(_mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14),
                                           _mm_set1_epi8(static_cast<char>(r)));
      const __m128i bytes = _mm_shuffle_epi8(_mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low)),
                                             numbers);
      if constexpr (F == WeightFormat::kMxfp4) return E8m0ToVec(_mm512_cvtepu8_epi32(bytes));
      const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
      return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(0x1p-6f));
    }
  }
};

#else

// Both words of 16 columns of a row, twice.
using TilePair = uint64_t __attribute__((vector_size(16)));

// The fourth pairs' codes of each: from the words' low halves in bits 0 to 3 and 32 to 35, from the high halves 16 bits
// higher.
DSV4_INLINE TilePair FourthPairs(TilePair q) {
  constexpr uint64_t kLow = 0x0000000000010001u, kHigh = kLow << 32;
  return ((q >> 13) & (kLow * 3)) | ((q >> 9) & (kLow * 4)) | ((q >> 43) & (kLow * 8)) | ((q >> 11) & (kHigh * 5)) |
         ((q << 23) & (kHigh * 2)) | ((q >> 7) & (kHigh * 8));
}
// The codes in the order of columns, four bits each, as UnplaceFp4.
DSV4_INLINE TilePair UnplaceFp4Pair(TilePair q) {
  constexpr uint64_t kWords = 0x0000000100000001u;
  const TilePair fourth = FourthPairs(q);
  TilePair codes = ((fourth & (kWords * 15)) << 24) | ((fourth & (kWords * 0xF0000)) << 12);
  codes |= ((q >> 6) & (kWords * 0x7)) | ((q >> 12) & (kWords * 0x8));           // column 0, magnitude and sign
  codes |= ((q >> 18) & (kWords * 0x70)) | ((q >> 24) & (kWords * 0x80));        // 1
  codes |= ((q << 5) & (kWords * 0x700)) | ((q >> 1) & (kWords * 0x800));        // 2
  codes |= ((q >> 7) & (kWords * 0x7000)) | ((q >> 13) & (kWords * 0x8000));     // 3
  codes |= ((q << 16) & (kWords * 0x70000)) | ((q << 10) & (kWords * 0x80000));  // 4
  codes |= ((q << 4) & (kWords * 0x700000)) | ((q >> 2) & (kWords * 0x800000));  // 5
  return codes;
}

// Loads 32 columns at a time and converts them to the order of a matrix in rows.
template <WeightFormat F>
struct Fp4TileRow : Fp4InTiles<F> {
  static constexpr int kVectors = 4;

  PlaceInTiles place;

  DSV4_INLINE Fp4TileRow(const QuantTensor& w, int64_t n) : place(w, n, Fp4InTiles<F>::kBytes) {}
  DSV4_INLINE Vec Load(int64_t k) const {
    Vec x[4];
    Load(k / 32 * 32, x);
    return x[k % 32 / kLanes];
  }
  DSV4_INLINE void Load(int64_t k, Vec (&x)[4]) const {
    const uint8_t* lane = place.TileOf(k) + 16 * place.LaneOf(k) + 8 * place.r;
    uint64_t first, second;
    std::memcpy(&first, lane, 8), std::memcpy(&second, lane + 16, 8);
    const TilePair codes = UnplaceFp4Pair(TilePair{first, second});
    uint8_t bytes[16];
    std::memcpy(bytes, &codes, 16);
#if defined(DSV4_SIMD_AVX2)
    constexpr float kFactor = 1.0f;
    DecodeE2m1(bytes, x);
#else
    constexpr float kFactor = kE2m1Unit;
    LoadE2m1(bytes, x);
#endif
    for (int v = 0; v < 4; ++v) x[v] = Mul(x[v], Set(FactorInTile<F>(place, k + v / 2 * 16) * kFactor));
  }
  DSV4_INLINE void Prefetch(int64_t k, int64_t n) const {
    for (int64_t c = k; c < std::min(k + n, place.tiled_cols); c += kTileCols64) {
      __builtin_prefetch(place.TileOf(c) + 64 * place.g);
      __builtin_prefetch(place.TileOf(c) + ScalesOfLane(F, static_cast<int>(4 * place.g)));
    }
  }
};

#endif

// Calls fn.operator()<Row>() with the row type of this matrix's format and layout.
template <typename Fn>
DSV4_INLINE void WithRowsOf(const QuantTensor& w, const Fn& fn) {
  if (w.layout == WeightLayout::kRows) return WithRowsOf(w.format, fn);
  switch (w.format) {
    case WeightFormat::kF32:
      return;  // has no tiles
    case WeightFormat::kBf16:
      return fn.template operator()<Bf16TileRow>();
    case WeightFormat::kFp8Block:
      return fn.template operator()<Fp8TileRow>();
    case WeightFormat::kMxfp4:
      return fn.template operator()<Fp4TileRow<WeightFormat::kMxfp4>>();
    case WeightFormat::kNvfp4:
      return fn.template operator()<Fp4TileRow<WeightFormat::kNvfp4>>();
    case WeightFormat::kMxfp4Tight:
    case WeightFormat::kNvfp4Tight:
      return fn.template operator()<Fp4TileRow<WeightFormat::kNvfp4Tight>>();
  }
}

}  // namespace dsv4::DSV4_ISA
