// y[t] = W x[t] on AMX tiles, for W in BF16, FP8, MXFP4 or NVFP4: exact weights, float32 inputs, float32 sums.
//
// Weights are BF16 numbers (code x block scale; FP8: the code, and the block scale multiplies the sum of its 128
// columns). An input is the sum of three BF16 terms, in three columns of a tile: its leading 8 bits, the next 8 and the
// last 8. Products of BF16 numbers are exact in float32, so only sums are rounded.
//
// The order of summation per output is the same for every number of tokens, rows or threads. Within a step of 32
// columns the tile instruction adds even and odd positions one by one, then both sums, then adds to the chunk's
// accumulator. Chunks of 256 columns (FP8: 128) are added to totals. Then the three terms are added, first to last. The
// global scale multiplies last. column_order.h defines the positions. The tile instruction treats numbers below 2^-126
// as zeros.
#pragma once

#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // the second name: clang 14
#define DSV4_SIMD_AMX 1

#include <vector>

#include "base/thread_pool.h"
#include "ops/linear/rows/column_order.h"
#include "ops/simd.h"
#include "tensor/quant_tensor.h"

namespace dsv4::DSV4_ISA {

inline constexpr int64_t kTileSide = 16;    // rows of W; columns of inputs
inline constexpr int64_t kTileStep = 32;    // columns of W in a tile
inline constexpr int64_t kTileWords = 256;  // a tile of inputs: [16 pairs of positions][16 columns] pairs of BF16
inline constexpr int64_t kInputParts = 3;
inline constexpr int64_t kPanelBlock = 128;  // columns that one call of FillPanel arranges

constexpr int64_t NumTileSteps(int64_t k, ColumnOrder order) { return CeilDiv(NumPositions(k, order), kTileStep); }
constexpr int64_t NumColumnTiles(int64_t tokens) { return CeilDiv(kInputParts * tokens, kTileSide); }

// The inputs of `num_tokens` tokens, [column tile][step][tile]; token t has columns 3 t .. 3 t + 2.
struct TilePanel {
  uint32_t* words = nullptr;
  int64_t num_tokens = 0;
  int64_t width = 0;  // K
  ColumnOrder order = ColumnOrder::kFile;

  int64_t steps() const { return NumTileSteps(width, order); }
  int64_t num_words() const { return NumColumnTiles(num_tokens) * steps() * kTileWords; }
  int64_t blocks() const { return CeilDiv(width, kPanelBlock); }
};

// Columns [block, block + 1) * kPanelBlock of token t.
inline void FillPanel(const TilePanel& p, int64_t t, int64_t block, const float* x) {
  alignas(64) float ordered[kPanelBlock] = {};
  const int64_t begin = block * kPanelBlock, n = std::min(kPanelBlock, p.width - begin);
  Arrange(x + begin, n, p.order, ordered);
  const int64_t first = block * (kPanelBlock / kTileStep), count = std::min(kPanelBlock / kTileStep, p.steps() - first);
  uint32_t* column[kInputParts];
  for (int64_t part = 0; part < kInputParts; ++part) {
    const int64_t c = kInputParts * t + part;
    column[part] = p.words + ((c / kTileSide) * p.steps() + first) * kTileWords + c % kTileSide;
  }
  for (int64_t i = 0; i < count * kTileStep / 2; i += 8) {
    __m512 rest = _mm512_load_ps(ordered + 2 * i);
    for (int64_t part = 0; part < kInputParts; ++part) {
      const __m512i bits = _mm512_and_si512(_mm512_castps_si512(rest),
                                            _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
      rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(bits));  // exact
      // Both numbers of a pair as one word.
      const __m512i words = _mm512_or_si512(_mm512_srli_epi64(bits, 32),
                                            _mm512_srli_epi64(_mm512_slli_epi64(bits, 32), 48));
      alignas(32) uint32_t pairs[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), _mm512_cvtepi64_epi32(words));
      for (int64_t j = 0; j < 8; ++j) column[part][(i + j) * kTileSide] = pairs[j];
    }
  }
}

// Panels of one width, filled by all threads. Reuses its memory in the next call.
class TilePanels {
 public:
  // Panel i holds `tokens(i)` tokens; row(i, t) is its token t.
  template <typename TokensOf, typename RowAt>
  void Set(ThreadPool* pool, int64_t count, int64_t width, ColumnOrder order, const TokensOf& tokens,
           const RowAt& row) {
    panels_.resize(static_cast<size_t>(count));
    int64_t words = 0, most = 1;
    for (int64_t i = 0; i < count; ++i) {
      TilePanel& p = panels_[static_cast<size_t>(i)];
      p = {.num_tokens = tokens(i), .width = width, .order = order};
      words += p.num_words();
      most = std::max(most, p.num_tokens);
    }
    const int64_t slack = 64 / sizeof(uint32_t);
    if (words_.size() < static_cast<size_t>(words + slack)) words_.resize(static_cast<size_t>(words + slack));
    auto at = reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(words_.data()) + 63) / 64 * 64);
    for (TilePanel& p : panels_) {
      p.words = at;
      at += p.num_words();
    }
    const int64_t blocks = CeilDiv(width, kPanelBlock);
    ParallelFor(pool, count * blocks, std::max<int64_t>(1, 64 / most), [&](int64_t begin, int64_t end, int) {
      for (int64_t item = begin; item < end; ++item) {
        const TilePanel& p = panels_[static_cast<size_t>(item / blocks)];
        for (int64_t t = 0; t < p.num_tokens; ++t) FillPanel(p, t, item % blocks, row(item / blocks, t));
      }
    });
  }
  const TilePanel& panel(int64_t i) const { return panels_[static_cast<size_t>(i)]; }

 private:
  std::vector<TilePanel> panels_;
  std::vector<uint32_t> words_;
};

struct TileProduct {
  static constexpr int64_t kRows = kTileSide;
  const QuantTensor* w = nullptr;  // any format but F32
  const TilePanel* x = nullptr;
  int64_t x_offset = 0;       // added to x, in panels
  float* const* y = nullptr;  // [num_tokens] rows
  int64_t y_offset = 0;       // row `begin` of W goes to y[t][y_offset]
  int64_t num_tokens = 0;     // of x, from first_token, which is a multiple of kTileSide
  int64_t first_token = 0;
};

// Rows [begin, end) of W (tile_rows_amx.cc).
void MultiplyRows(const TileProduct& p, int64_t begin, int64_t end);

inline bool TakesTiles(const QuantTensor& w) {
  return w.format != WeightFormat::kF32 && w.layout == WeightLayout::kRows;
}

}  // namespace dsv4::DSV4_ISA

#endif
