#include "ops/linear/amx/tile_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/linear/rows/decode.h"

namespace dsv4::DSV4_ISA {

namespace {

constexpr int64_t kRowTiles = 4;
constexpr int64_t kBlockRows = kRowTiles * kTileSide;  // rows decoded at a time
constexpr int64_t kMostChunk = 256;                    // 32 KiB of BF16

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// 32 weights as BF16, exactly (Vec holds BF16 numbers).
DSV4_INLINE void StoreBf16(uint16_t* out, Vec low, Vec high) {
  const __m512bh pair = _mm512_cvtne2ps_pbh(high.v, low.v);
  std::memcpy(out, &pair, 64);
}

// Positions [k, k + width) of a row, width a multiple of kTileStep; zeros after the row's last column.
template <typename Row>
void DecodeRow(const Row& row, int64_t k_dim, int64_t k, int64_t width, uint16_t* out) {
  constexpr int64_t kStep = std::max(kTileStep, Row::kVectors * kLanes);
  int64_t i = 0;
  if constexpr (Row::kVectors == 8) {  // E2M1: whole blocks, zeros included
    for (; i < width; i += kStep) {
      Vec x[8];
      row.Load(k + i, x);
      for (int v = 0; v < 8; v += 2) StoreBf16(out + i + v * kLanes, x[v], x[v + 1]);
    }
    return;
  }
  for (; i < width && k + i + kTileStep <= k_dim; i += kTileStep) {
    if constexpr (Row::kCodeBits == 16) {
      std::memcpy(out + i, row.codes + (k + i) * 2, 64);
    } else {
      StoreBf16(out + i, row.Load(k + i), row.Load(k + i + kLanes));
    }
  }
  const auto tail = [&](int64_t at) {
    const int64_t left = std::clamp<int64_t>(k_dim - at, 0, kLanes);
    return left == kLanes ? row.Load(at) : left > 0 ? row.LoadTail(at, left) : Zero();
  };
  for (; i < width; i += kTileStep) StoreBf16(out + i, tail(k + i), tail(k + i + kLanes));
}

#define DSV4_TILE_ROW(i)                                           \
  if constexpr (RowTiles > i) {                                    \
    _tile_loadd(5, weights + i * kTileSide * kMostChunk, kStride); \
    _tile_dpbf16ps(i, 5, 4);                                       \
  }

// sums[i * kTileWords ..] = rows 16 i .. of `weights` times a column tile over `steps` steps.
template <int RowTiles>
DSV4_INLINE void MultiplySteps(const uint16_t* weights, const uint32_t* x, int64_t steps, float* sums) {
  constexpr int64_t kStride = kMostChunk * 2;
  asm volatile("" ::: "memory");  // the data that the tiles load has been stored
  _tile_zero(0);
  if constexpr (RowTiles > 1) _tile_zero(1);
  if constexpr (RowTiles > 2) _tile_zero(2);
  if constexpr (RowTiles > 3) _tile_zero(3);
  for (int64_t s = 0; s < steps; ++s, weights += kTileStep, x += kTileWords) {
    _tile_loadd(4, x, 64);
    DSV4_TILE_ROW(0)
    DSV4_TILE_ROW(1)
    DSV4_TILE_ROW(2)
    DSV4_TILE_ROW(3)
  }
  _tile_stored(0, sums, 64);
  if constexpr (RowTiles > 1) _tile_stored(1, sums + 1 * kTileWords, 64);
  if constexpr (RowTiles > 2) _tile_stored(2, sums + 2 * kTileWords, 64);
  if constexpr (RowTiles > 3) _tile_stored(3, sums + 3 * kTileWords, 64);
  asm volatile("" ::: "memory");
}
#undef DSV4_TILE_ROW

// Prefetches `bytes` bytes of a row.
DSV4_INLINE void Prefetch(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

template <typename Row>
class TileBlock {
 public:
  TileBlock(const TileProduct& p, std::vector<float>& totals) : p_(p), w_(*p.w), totals_(totals) {
    const TilePanel& x = p.x[p.x_offset];
    steps_ = x.steps();
    panel_ = x.words + kInputParts * p.first_token / kTileSide * steps_ * kTileWords;
    column_tiles_ = NumColumnTiles(p.num_tokens);
    const auto size = static_cast<size_t>(column_tiles_ * kRowTiles * kTileWords);
    if (totals_.size() < size) totals_.resize(size);
  }

  // Rows n .. n + count - 1, count <= kBlockRows.
  void Run(int64_t begin, int64_t n, int64_t count) {
    const int64_t row_tiles = CeilDiv(count, kTileSide);
    constexpr int64_t kChunkSteps = Row::kChunk / kTileStep;
    for (int64_t step = 0; step < steps_; step += kChunkSteps) {
      const int64_t steps = std::min(kChunkSteps, steps_ - step);
      Decode(n, count, row_tiles, step * kTileStep, steps * kTileStep);
      for (int64_t c = 0; c < column_tiles_; ++c) {
        const uint32_t* x = panel_ + (c * steps_ + step) * kTileWords;
        switch (row_tiles) {
          case 1:
            MultiplySteps<1>(decoded_, x, steps, sums_);
            break;
          case 2:
            MultiplySteps<2>(decoded_, x, steps, sums_);
            break;
          case 3:
            MultiplySteps<3>(decoded_, x, steps, sums_);
            break;
          default:
            MultiplySteps<4>(decoded_, x, steps, sums_);
            break;
        }
        AddSums(c, row_tiles, /*first=*/step == 0);
      }
    }
    Finish(begin, n, count);
  }

 private:
  void Decode(int64_t n, int64_t count, int64_t row_tiles, int64_t k, int64_t width) {
    // Prefetches the next chunk of every row; at the end of a row the first chunk of the next block.
    const int64_t bits = Row::kCodeBits, chunk_bytes = Row::kChunk * bits / 8;
    const bool last = k + Row::kChunk >= w_.cols;
    const uint8_t* ahead = w_.codes + (last ? n + kBlockRows : n) * w_.row_bytes() +
                           (last ? 0 : (k + Row::kChunk) * bits / 8);
    for (int64_t r = 0; r < count; ++r) {
      Prefetch(ahead + r * w_.row_bytes(), chunk_bytes);
      DecodeRow(Row(w_, n + r), w_.cols, k, width, decoded_ + r * kMostChunk);
      scale_[r] = 1.0f;
      if constexpr (Row::kChunkScale) scale_[r] = Row::ChunkScale(w_, n + r, k);
    }
    for (int64_t r = count; r < row_tiles * kTileSide; ++r) {
      std::fill_n(decoded_ + r * kMostChunk, width, uint16_t{0});
      scale_[r] = 0.0f;
    }
  }

  void AddSums(int64_t c, int64_t row_tiles, bool first) {
    float* totals = totals_.data() + c * kRowTiles * kTileWords;
    for (int64_t r = 0; r < row_tiles * kTileSide; ++r) {
      const Vec sum = Load(sums_ + r * kTileSide), before = first ? Zero() : Load(totals + r * kTileSide);
      if constexpr (Row::kChunkScale) {
        Store(totals + r * kTileSide, Fma(sum, Set(scale_[r]), before));
      } else {
        Store(totals + r * kTileSide, Add(sum, before));
      }
    }
  }

  void Finish(int64_t begin, int64_t n, int64_t count) {
    const float scale = w_.global_scale * Row::kUnit;
    for (int64_t t = 0; t < p_.num_tokens; ++t) {
      float* y = p_.y[t] + p_.y_offset + n - begin;
      const auto total = [&](int64_t part, int64_t r) {
        const int64_t c = kInputParts * t + part;
        return totals_[static_cast<size_t>((c / kTileSide * kBlockRows + r) * kTileSide + c % kTileSide)];
      };
      for (int64_t r = 0; r < count; ++r) y[r] = ((total(0, r) + total(1, r)) + total(2, r)) * scale;
    }
  }

  const TileProduct& p_;
  const QuantTensor& w_;
  std::vector<float>& totals_;  // [column tile][kBlockRows][16]
  const uint32_t* panel_;
  int64_t steps_, column_tiles_;
  float scale_[kBlockRows];
  alignas(64) float sums_[kRowTiles * kTileWords];
  alignas(64) uint16_t decoded_[kBlockRows * kMostChunk];
};

template <typename Row>
void MultiplyRowsOf(const TileProduct& p, int64_t begin, int64_t end) {
  static thread_local std::vector<float> totals;
  TileBlock<Row> block(p, totals);
  for (int64_t n = begin; n < end; n += kBlockRows) block.Run(begin, n, std::min(kBlockRows, end - n));
}

}  // namespace

void MultiplyRows(const TileProduct& p, int64_t begin, int64_t end) {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  WithRowsOf(p.w->format, [&]<typename Row>() {
    if constexpr (!std::is_same_v<Row, F32Row>) MultiplyRowsOf<Row>(p, begin, end);  // F32 has no tile product
  });
  _tile_release();
}

}  // namespace dsv4::DSV4_ISA
