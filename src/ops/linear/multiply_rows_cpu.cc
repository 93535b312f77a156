#include "ops/linear/multiply_rows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ops/linear/decode.h"

namespace dsv4::DSV4_ISA {

namespace {

#ifdef DSV4_SIMD_AVX512
constexpr int64_t kBlockTokens = 6;  // 24 accumulators, 6 inputs, 1 weight: 32 registers
#else
constexpr int64_t kBlockTokens = kTileTokens;
#endif

// What a chunk's accumulator is multiplied by; see decode.h.
template <typename Row>
DSV4_INLINE Vec AddChunk(const QuantTensor& w, int64_t n, int64_t k, Vec acc, Vec total) {
  if constexpr (Row::kChunkScale) return Fma(acc, Set(BlockScale(w, n, k)), total);
  return Add(acc, total);
}

// Asks for the codes of the R rows behind the present R, `width` columns from k: rows follow one another in memory, and
// the processor's own prefetch starts anew with every row, which matters for the short ones.
template <typename Row, int R>
DSV4_INLINE void PrefetchNextRows(const uint8_t* codes, int64_t row_bytes, int64_t k, int64_t width) {
  for (int64_t r = R; r < 2 * R; ++r) {
    const uint8_t* p = codes + r * row_bytes + k * Row::kCodeBits / 8;
    for (int64_t i = 0; i < width * Row::kCodeBits / 8; i += 64) __builtin_prefetch(p + i);
  }
}

// Few tokens: weights go from their codes into registers and into T products each.
template <typename Row, int R, int T>
void MultiplyInRegisters(const RowProduct& p, int64_t n, int64_t begin) {
  const QuantTensor& w = *p.w;
  const int64_t k_dim = w.cols, whole = Row::Whole(k_dim), row_bytes = w.row_bytes();
  const uint8_t* codes = w.codes + n * row_bytes;
  const float* x[T];
  for (int t = 0; t < T; ++t) x[t] = p.x[t] + p.x_offset;
  const auto rows = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<Row, R>{Row(w, n + static_cast<int64_t>(I))...};
  }
  (std::make_index_sequence<R>());
  Vec total[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) total[r][t] = Zero();
  }
  for (int64_t k = 0; k < k_dim; k += Row::kChunk) {
    Vec acc[R][T];
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < T; ++t) acc[r][t] = Zero();
    }
    if constexpr (Row::kCodeBits <= 8) PrefetchNextRows<Row, R>(codes, row_bytes, k, std::min(Row::kChunk, k_dim - k));
    AddProducts<R, T>(rows.data(), x, k, std::min(k + Row::kChunk, whole), acc);
    if (whole < k_dim && k + Row::kChunk > whole) {
      for (int r = 0; r < R; ++r) {
        const Vec tail = rows[static_cast<size_t>(r)].LoadTail(whole, k_dim - whole);
        for (int t = 0; t < T; ++t) acc[r][t] = Fma(tail, Load(x[t] + whole), acc[r][t]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < T; ++t) total[r][t] = AddChunk<Row>(w, n + r, k, acc[r][t], total[r][t]);
    }
  }
  const float scale = w.global_scale * Row::kUnit;
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) p.y[t][p.y_offset + n + r - begin] = Sum(total[r][t]) * scale;
  }
}

template <typename Row, int T>
void MultiplyFewTokens(const RowProduct& p, int64_t begin, int64_t end) {
  constexpr int64_t kRows = T <= 2 ? 4 : 2;  // accumulators and what decoding needs fit the registers
  int64_t n = begin;
  for (; n + kRows <= end; n += kRows) MultiplyInRegisters<Row, kRows, T>(p, n, begin);
  for (; n < end; ++n) MultiplyInRegisters<Row, 1, T>(p, n, begin);
}

// Many tokens: up to kRowBlock rows are decoded into memory, chunk by chunk, and multiplied in tiles.
template <typename Row>
class BlockProduct {
 public:
  void Run(const RowProduct& p, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; n += kRowBlock) {
      const int64_t count = std::min(kRowBlock, end - n);
      for (int64_t t = 0; t < p.num_tokens; t += kTokenBlock) {
        Accumulate(p, n, count, t, std::min(kTokenBlock, p.num_tokens - t));
        Finish(p, begin, n, count, t, std::min(kTokenBlock, p.num_tokens - t));
      }
    }
  }

 private:
  void Accumulate(const RowProduct& p, int64_t n, int64_t count, int64_t first_token, int64_t num_tokens) {
    const QuantTensor& w = *p.w;
    const int64_t k_dim = w.cols;
    for (int64_t k = 0; k < k_dim; k += Row::kChunk) {
      const int64_t width = std::min(Row::kChunk, std::max(k_dim, Row::Whole(k_dim)) - k);
      for (int64_t r = 0; r < count; ++r) {
        Decode(Row(w, n + r), k, width, decoded_ + r * Row::kChunk);
        if constexpr (Row::kChunkScale) scale_[r] = BlockScale(w, n + r, k);
      }
      for (int64_t r = count; r % kTileRows != 0; ++r) {  // the rest of the last tile
        std::fill_n(decoded_ + r * Row::kChunk, Row::kChunk, 0.0f);
        scale_[r] = 0.0f;
      }
      for (int64_t t = 0, tokens = 0; t < num_tokens; t += tokens) {
        tokens = num_tokens - t == kBlockTokens + 1
                     ? kBlockTokens - 1
                     : std::min(kBlockTokens, num_tokens - t);  // 4 = 2 + 2: one leaves no reuse
        const float* x[kBlockTokens];
        for (int64_t i = 0; i < tokens; ++i) x[i] = p.x[first_token + t + i] + p.x_offset + k;
        for (int64_t r = 0; r < count; r += kTileRows) {
          [&]<size_t... I>(std::index_sequence<I...>) {
            ((tokens == I + 1 ? Tile<I + 1>(x, PadToLanes(width), r, t, k == 0) : void()), ...);
          }
          (std::make_index_sequence<kBlockTokens>());
        }
      }
    }
  }

  static void Decode(const Row& row, int64_t k, int64_t width, float* out) {
    constexpr int64_t kStep = Row::kVectors * kLanes;
    const int64_t whole = width / kLanes * kLanes;
    int64_t i = 0;
    for (; i + kStep <= whole; i += kStep) {
      Vec x[Row::kVectors];
      row.Load(k + i, x);
      for (int64_t v = 0; v < Row::kVectors; ++v) Store(out + i + v * kLanes, x[v]);
    }
    for (; i < whole; i += kLanes) Store(out + i, row.Load(k + i));
    if (whole < width) Store(out + whole, row.LoadTail(k + whole, width - whole));
  }

  // Rows r .. r+3 of the block times T tokens.
  template <int T>
  void Tile(const float* const* x, int64_t width, int64_t r, int64_t t, bool first) {
    Vec acc[kTileRows][T];
    for (int i = 0; i < kTileRows; ++i) {
      for (int j = 0; j < T; ++j) acc[i][j] = Zero();
    }
    const float* block = decoded_ + r * Row::kChunk;
    const BufferRow rows[kTileRows] = {
        {block}, {block + Row::kChunk}, {block + 2 * Row::kChunk}, {block + 3 * Row::kChunk}};
    AddProducts<kTileRows, T>(rows, x, 0, width, acc);
    for (int i = 0; i < kTileRows; ++i) {
      for (int j = 0; j < T; ++j) {
        Vec& total = total_[t + j][r + i];
        const Vec before = first ? Zero() : total;
        if constexpr (Row::kChunkScale) {
          total = Fma(acc[i][j], Set(scale_[r + i]), before);
        } else {
          total = Add(acc[i][j], before);
        }
      }
    }
  }

  void Finish(const RowProduct& p, int64_t begin, int64_t n, int64_t count, int64_t first_token,
              int64_t num_tokens) {
    const float scale = p.w->global_scale * Row::kUnit;
    for (int64_t t = 0; t < num_tokens; ++t) {
      float sums[kRowBlock];
      for (int64_t r = 0; r < count; r += kTileRows) {
        StoreSums(sums + r, total_[t][r], total_[t][r + 1], total_[t][r + 2], total_[t][r + 3]);
      }
      float* y = p.y[first_token + t] + p.y_offset + n - begin;
      for (int64_t r = 0; r < count; ++r) y[r] = sums[r] * scale;
    }
  }

  alignas(64) float decoded_[kRowBlock * Row::kChunk];
  float scale_[kRowBlock];
  Vec total_[kTokenBlock][kRowBlock];
};

template <typename Row>
void MultiplyRowsOf(const RowProduct& p, int64_t begin, int64_t end) {
  switch (p.num_tokens) {
    case 1:
      return MultiplyFewTokens<Row, 1>(p, begin, end);
    case 2:
      return MultiplyFewTokens<Row, 2>(p, begin, end);
    case 3:
      return MultiplyFewTokens<Row, 3>(p, begin, end);
    case 4:
      return MultiplyFewTokens<Row, 4>(p, begin, end);
    case 5:
      return MultiplyFewTokens<Row, 5>(p, begin, end);
    case 6:
      return MultiplyFewTokens<Row, 6>(p, begin, end);
    default: {
      BlockProduct<Row> block;
      return block.Run(p, begin, end);
    }
  }
}

}  // namespace

void MultiplyRows(const RowProduct& p, int64_t begin, int64_t end) {
  switch (p.w->format) {
    case WeightFormat::kF32:
      return MultiplyRowsOf<F32Row>(p, begin, end);
    case WeightFormat::kBf16:
      return MultiplyRowsOf<Bf16Row>(p, begin, end);
    case WeightFormat::kFp8Block:
      return MultiplyRowsOf<Fp8Row>(p, begin, end);
    case WeightFormat::kMxfp4:
      return MultiplyRowsOf<Mxfp4Row>(p, begin, end);
    case WeightFormat::kNvfp4:
      return MultiplyRowsOf<Nvfp4Row>(p, begin, end);
  }
}

}  // namespace dsv4::DSV4_ISA
