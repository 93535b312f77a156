#include "ops/linear/rows/multiply_rows.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "ops/linear/rows/decode_tiles.h"

namespace dsv4::DSV4_ISA {

namespace {

#ifdef DSV4_SIMD_AVX512
constexpr int64_t kBlockTokens = 6;  // 24 accumulators, 6 inputs, 1 weight: 32 registers
#elif defined(DSV4_SIMD_AVX2)
constexpr int64_t kBlockTokens = kTileTokens;
#else
constexpr int64_t kBlockTokens = 1;  // a vector is two registers of SSE2's 16
#endif

// Adds a chunk's accumulator to the total, times its scale, if any; see decode.h.
template <typename Row>
DSV4_INLINE Vec AddChunk(const QuantTensor& w, int64_t n, int64_t k, Vec acc, Vec total) {
  if constexpr (Row::kChunkScale) return Fma(acc, Set(Row::ChunkScale(w, n, k)), total);
  return Add(acc, total);
}

// Prefetches the codes of the R rows after the current R, `width` columns from k. Rows are contiguous in memory, but
// the processor's own prefetch starts again with every row, which matters for short rows.
template <typename Row, int R>
DSV4_INLINE void PrefetchNextRows(const QuantTensor& w, int64_t n, int64_t k, int64_t width) {
  if constexpr (Row::kInTiles) {
    for (int64_t r = R; r < 2 * R; r += 2) Row(w, Row::At(w, n + r)).Prefetch(k, width);
  } else {
    const int64_t row_bytes = w.row_bytes();
    const uint8_t* codes = w.codes + n * row_bytes;
    for (int64_t r = R; r < 2 * R; ++r) {
      const uint8_t* p = codes + r * row_bytes + k * Row::kCodeBits / 8;
      for (int64_t i = 0; i < width * Row::kCodeBits / 8; i += 64) __builtin_prefetch(p + i);
    }
  }
}

// Few tokens: weights go from their codes into registers, and each is used in T products. A separate function: if it is
// inlined, GCC reloads the rows' addresses from memory with every product.
template <typename Row, int R, int T>
[[gnu::noinline]] void MultiplyInRegisters(const RowProduct& p, int64_t n, int64_t begin) {
  const QuantTensor& w = *p.w;
  const int64_t k_dim = w.cols, whole = Row::Whole(k_dim);
  const float* x[T];
  for (int t = 0; t < T; ++t) x[t] = p.x[t] + p.x_offset;
  const auto rows = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<Row, R>{Row(w, Row::At(w, n + static_cast<int64_t>(I)))...};
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
    if constexpr (Row::kCodeBits <= 8) PrefetchNextRows<Row, R>(w, n, k, std::min(Row::kChunk, k_dim - k));
    AddProducts<R, T>(rows.data(), x, k, std::min(k + Row::kChunk, whole), acc);
    if (whole < k_dim && k + Row::kChunk > whole) {
      for (int r = 0; r < R; ++r) {
        const Vec tail = rows[static_cast<size_t>(r)].LoadTail(whole, k_dim - whole);
        for (int t = 0; t < T; ++t) acc[r][t] = Fma(tail, Load(x[t] + whole), acc[r][t]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < T; ++t) total[r][t] = AddChunk<Row>(w, Row::At(w, n + r), k, acc[r][t], total[r][t]);
    }
  }
  const float scale = w.global_scale * Row::kUnit;
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) p.y[t][p.y_offset + Row::At(w, n + r) - begin] = Sum(total[r][t]) * scale;
  }
}

template <typename Row, int T>
void MultiplyFewTokens(const RowProduct& p, int64_t begin, int64_t end) {
  // Accumulators and the decoder's values fit in the registers. In tiles two rows share cache lines; for one token two
  // rows at a time are fastest (measured).
  constexpr int64_t kRows = T == 2 || (T == 1 && !Row::kInTiles) ? 4 : 2;
  int64_t n = begin;
  for (; n + kRows <= end; n += kRows) MultiplyInRegisters<Row, kRows, T>(p, n, begin);
  for (; n < end; ++n) MultiplyInRegisters<Row, 1, T>(p, n, begin);
}

// fn(0) .. fn(N - 1) with constants, so that GCC knows the indices before it allocates registers.
template <int64_t N, typename Fn>
DSV4_INLINE void Unroll(const Fn& fn) {
  [&]<int64_t... I>(std::integer_sequence<int64_t, I...>) { (fn(std::integral_constant<int64_t, I>()), ...); }
  (std::make_integer_sequence<int64_t, N>());
}

// Adds the products of kTileRows decoded rows and T tokens over a chunk to their totals. The `first` chunk overwrites
// the totals. x holds `vectors` times one vector of each token, w the same of each row. A separate function: if it is
// inlined, GCC leaves accumulators in memory.
template <int T, bool Scaled>
[[gnu::noinline]] void AddTile(const float* x, const float* w, int64_t vectors, const float* scale, bool first,
                               Vec* total) {
  Vec acc[T][kTileRows];
  Unroll<T>([&](auto t) { Unroll<kTileRows>([&](auto r) { acc[t][r] = Zero(); }); });
  for (int64_t v = 0; v < vectors; ++v, w += kTileRows * kLanes, x += T * kLanes) {
    Vec inputs[T];
    Unroll<T>([&](auto t) { inputs[t] = InRegister(Load(x + t * kLanes)); });
    Unroll<kTileRows>([&](auto r) {
      const Vec weights = InRegister(Load(w + r * kLanes));
      Unroll<T>([&](auto t) { acc[t][r] = Fma(weights, inputs[t], acc[t][r]); });
    });
  }
  Unroll<T>([&](auto t) {
    Unroll<kTileRows>([&](auto r) {
      Vec& sum = total[t * kTileRows + r];
      const Vec before = first ? Zero() : sum;
      sum = Scaled ? Fma(acc[t][r], Set(scale[r]), before) : Add(acc[t][r], before);
    });
  });
}

constexpr int64_t kMaxChunk = 256;
constexpr int64_t kBlockTotals = 64 * kTokenBlock;

// A thread's memory for BlockProduct, reused between calls: too large for the stack of a thread that another program
// made.
struct BlockMemory {
  alignas(64) float decoded[kRowBlock * kMaxChunk];
  float scale[kRowBlock];
  alignas(64) float inputs[kTokenBlock * kMaxChunk];  // 96 KiB
  Vec total[kBlockTotals];                            // 192 KiB (AVX-512: 384)

  static BlockMemory& OfThread() {
    static thread_local const std::unique_ptr<BlockMemory> memory{new BlockMemory};
    return *memory;
  }
};

// Many tokens. A block has up to kTokenBlock tokens and the rows of W whose running totals fit. It processes the
// columns in strips of a few chunks. It first copies a strip's inputs next to each other, because rows of x are a power
// of two apart and share a few cache sets. The copies and the totals stay in the second cache level. Then it decodes
// kRowBlock rows of W at a time, one chunk at a time, into the first level, and multiplies them with all tokens in
// tiles. Inputs and weights are stored in the order in which a tile reads them.
template <typename Row>
class BlockProduct {
 public:
  void Run(const RowProduct& p, int64_t begin, int64_t end) {
    for (int64_t t = 0; t < p.num_tokens; t += kTokenBlock) {
      const Tokens tokens{.x = p.x + t, .y = p.y + t, .count = std::min(kTokenBlock, p.num_tokens - t)};
      const int64_t rows = kBlockTotals / tokens.count / kRowBlock * kRowBlock;
      for (int64_t n = begin; n < end; n += rows) {
        Accumulate(p, tokens, n, std::min(rows, end - n));
        Finish(p, tokens, std::min(rows, end - n), n - begin);
      }
    }
  }

 private:
  struct Tokens {
    const float* const* x;
    float* const* y;
    int64_t count;
  };
  static_assert(Row::kChunk <= kMaxChunk);

  // fn(t, n) for tiles of n tokens from t: 4 = 2 + 2, because one token has no reuse.
  template <typename Fn>
  static DSV4_INLINE void ForEachTile(int64_t num_tokens, const Fn& fn) {
    for (int64_t t = 0, n = 0; t < num_tokens; t += n) {
      n = kBlockTokens > 2 && num_tokens - t == kBlockTokens + 1 ? kBlockTokens - 1
                                                                 : std::min(kBlockTokens, num_tokens - t);
      fn(t, n);
    }
  }

  void Accumulate(const RowProduct& p, const Tokens& tokens, int64_t n, int64_t count) {
    const int64_t k_dim = std::max(p.w->cols, Row::Whole(p.w->cols));
    const int64_t strip = kTokenBlock * kMaxChunk / Row::kChunk / tokens.count * Row::kChunk;
    for (int64_t begin = 0; begin < k_dim; begin += strip) {
      const int64_t end = std::min(begin + strip, k_dim);
      for (int64_t k = begin; k < end; k += Row::kChunk) {
        CopyInputs(tokens, p.x_offset + k, Vectors(k, end), inputs_ + (k - begin) * tokens.count);
      }
      for (int64_t r = 0; r < count; r += kRowBlock) {
        const int64_t rows = std::min(kRowBlock, count - r);
        for (int64_t k = begin; k < end; k += Row::kChunk) {
          const bool last = k + Row::kChunk >= end;
          DecodeRows(*p.w, n + r, rows, k, std::min(Row::kChunk, k_dim - k), last ? n + r + kRowBlock : n + r,
                     last ? begin : k + Row::kChunk, n + count);
          MultiplyChunk(tokens.count, Vectors(k, end), inputs_ + (k - begin) * tokens.count, rows, /*first=*/k == 0,
                        total_ + r * tokens.count);
        }
      }
    }
  }

  // The vectors of the chunk at k.
  static int64_t Vectors(int64_t k, int64_t end) { return PadToLanes(std::min(Row::kChunk, end - k)) / kLanes; }

  static void CopyInputs(const Tokens& tokens, int64_t offset, int64_t vectors, float* out) {
    constexpr int64_t kLine = 64 / sizeof(float);
    ForEachTile(tokens.count, [&](int64_t first, int64_t n) {
      for (int64_t t = first; t < first + n; ++t) {
        // Pieces of rows are too short for the processor to detect a stream. After the last token comes the next chunk.
        const int64_t next = t + kBlockTokens;
        const float* ahead = next < tokens.count
                                 ? tokens.x[next] + offset
                                 : tokens.x[std::min(next, 2 * tokens.count - 1) - tokens.count] + offset + Row::kChunk;
        for (int64_t i = 0; i < vectors * kLanes; i += kLine) __builtin_prefetch(ahead + i);
        const float* from = tokens.x[t] + offset;
        float* to = out + (first * vectors + t - first) * kLanes;
        for (int64_t v = 0; v < vectors; ++v) Store(to + v * n * kLanes, Load(from + v * kLanes));
      }
    });
  }

  float* DecodedRow(int64_t r) { return decoded_ + r / kTileRows * kTileRows * Row::kChunk + r % kTileRows * kLanes; }

  // Decodes `width` columns from k of rows [n, n + rows). Prefetches the rows from `next` (up to `end`) at `next_k`,
  // which come after that: these are also short pieces without a stream.
  void DecodeRows(const QuantTensor& w, int64_t n, int64_t rows, int64_t k, int64_t width, int64_t next, int64_t next_k,
                  int64_t end) {
    for (int64_t r = 0; r < rows; ++r) {
      if (next + r < end) Row(w, next + r).Prefetch(next_k, Row::kChunk);
      Decode(Row(w, n + r), k, width, DecodedRow(r));
      if constexpr (Row::kChunkScale) scale_[r] = Row::ChunkScale(w, n + r, k);
    }
    for (int64_t r = rows; r % kTileRows != 0; ++r) {  // the rest of the last tile
      for (int64_t i = 0; i < PadToLanes(width); i += kLanes) Store(DecodedRow(r) + i * kTileRows, Zero());
      scale_[r] = 0.0f;
    }
  }

  static void Decode(const Row& row, int64_t k, int64_t width, float* out) {
    constexpr int64_t kStep = Row::kVectors * kLanes;
    const int64_t whole = width / kLanes * kLanes;
    int64_t i = 0;
    for (; i + kStep <= whole; i += kStep) {
      Vec x[Row::kVectors];
      row.Load(k + i, x);
      for (int64_t v = 0; v < Row::kVectors; ++v) Store(out + (i + v * kLanes) * kTileRows, x[v]);
    }
    for (; i < whole; i += kLanes) Store(out + i * kTileRows, row.Load(k + i));
    if (whole < width) Store(out + whole * kTileRows, row.LoadTail(k + whole, width - whole));
  }

  // Multiplies the decoded weights with the chunk's inputs. total: [rows / kTileRows][num_tokens][kTileRows]
  void MultiplyChunk(int64_t num_tokens, int64_t vectors, const float* inputs, int64_t rows, bool first, Vec* total) {
    ForEachTile(num_tokens, [&](int64_t t, int64_t n) {
      for (int64_t r = 0; r < rows; r += kTileRows) {
        [&]<size_t... I>(std::index_sequence<I...>) {
          ((n == I + 1 ? AddTile<I + 1, Row::kChunkScale>(inputs + t * vectors * kLanes, DecodedRow(r), vectors,
                                                          scale_ + r, first, total + r * num_tokens + t * kTileRows)
                       : void()),
           ...);
        }
        (std::make_index_sequence<kBlockTokens>());
      }
    });
  }

  void Finish(const RowProduct& p, const Tokens& tokens, int64_t count, int64_t y_offset) {
    const float scale = p.w->global_scale * Row::kUnit;
    for (int64_t t = 0; t < tokens.count; ++t) {
      float* y = tokens.y[t] + p.y_offset + y_offset;
      for (int64_t r = 0; r < count; r += kTileRows) {
        float sums[kTileRows];
        const Vec* total = total_ + r * tokens.count + t * kTileRows;
        StoreSums(sums, total[0], total[1], total[2], total[3]);
        for (int64_t i = 0; i < std::min(kTileRows, count - r); ++i) y[r + i] = sums[i] * scale;
      }
    }
  }

  BlockMemory& memory_ = BlockMemory::OfThread();
  float* const decoded_ = memory_.decoded;
  float* const scale_ = memory_.scale;
  float* const inputs_ = memory_.inputs;
  Vec* const total_ = memory_.total;
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
    default: {
      BlockProduct<Row> block;
      return block.Run(p, begin, end);
    }
  }
}

}  // namespace

void MultiplyRows(const RowProduct& p, int64_t begin, int64_t end) {
  WithRowsOf(*p.w, [&]<typename Row>() { MultiplyRowsOf<Row>(p, begin, end); });
}

}  // namespace dsv4::DSV4_ISA
