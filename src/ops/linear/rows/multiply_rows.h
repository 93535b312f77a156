// y[t] = W x[t] for a range of rows of W: the inner kernel of linear, experts, hc_pre and hc_head.
//
// The order of summation per output element is the same for every number of tokens, rows or threads. K is divided into
// chunks of Row::kChunk columns. Within a chunk, lane l of one accumulator of L = kLanes lanes adds the products of
// columns k % L == l in order of k (E2M1: k counts positions of column_order.h). The chunk's accumulator (times its
// scale, for FP8) is added to a total of L lanes. At the end the lanes of the total are added (simd.h) and multiplied
// by the global scale. Zeros pad the last L columns.
#pragma once

#include "ops/linear/rows/column_order.h"
#include "ops/simd.h"

namespace dsv4 {

inline constexpr int64_t kTileRows = 4, kTileTokens = 3;  // 12 accumulators, 3 inputs, 1 weight: 16 registers
inline constexpr int64_t kRowBlock = 16;    // rows decoded at a time: 16 KiB of float32 for 256 columns, in L1
inline constexpr int64_t kTokenBlock = 96;  // tokens that share one decoding

struct RowProduct {
  static constexpr int64_t kRows = kTileRows;  // a thread's number of rows is a multiple of this
  const QuantTensor* w = nullptr;
  const float* const* x = nullptr;  // [num_tokens] rows of NumPositions(K) floats, see column_order.h
  int64_t x_offset = 0;             // added to every x[t]
  float* const* y = nullptr;        // [num_tokens] rows
  int64_t y_offset = 0;             // row `begin` of W goes to y[t][y_offset]
  int64_t num_tokens = 0;
};

namespace DSV4_ROWS_OF {
// Computes rows [begin, end) of W (multiply_rows_cpu.cc). For a matrix in tiles: the begin-th to end-th row in the
// order of At, each at its own place in y. All ranges together have all rows.
void MultiplyRows(const RowProduct& p, int64_t begin, int64_t end);
}  // namespace DSV4_ROWS_OF

namespace DSV4_ISA {

// Instruction sets without an own version use another set's (DSV4_ROWS_OF, ops/CMakeLists.txt).
using DSV4_ROWS_OF::MultiplyRows;

// Decoded weights in memory.
struct BufferRow {
  static constexpr int kVectors = 1;
  const float* p;
  DSV4_INLINE Vec Load(int64_t k) const { return dsv4::DSV4_ISA::Load(p + k); }
  DSV4_INLINE void Load(int64_t k, Vec (&x)[1]) const { x[0] = Load(k); }
};

// acc[r][t] += row r . x[t] over columns [begin, end), both multiples of kLanes.
template <int R, int T, typename Row>
DSV4_INLINE void AddProducts(const Row* rows, const float* const* x, int64_t begin, int64_t end, Vec (&acc)[R][T]) {
  constexpr int64_t kStep = Row::kVectors * kLanes;
  constexpr bool kKeep = Row::kVectors == 1 || T == 2;  // with more inputs no registers are left for decoding
  int64_t k = begin;
  for (; k + kStep <= end; k += kStep) {
    Vec inputs[Row::kVectors][T];
    for (int v = 0; v < Row::kVectors && kKeep; ++v) {
      for (int t = 0; t < T; ++t) inputs[v][t] = InRegister(Load(x[t] + k + v * kLanes));
    }
    for (int r = 0; r < R; ++r) {
      Vec w[Row::kVectors];
      rows[r].Load(k, w);
      for (int v = 0; v < Row::kVectors; ++v) {
        for (int t = 0; t < T; ++t) {
          if constexpr (kKeep) {
            acc[r][t] = Fma(w[v], inputs[v][t], acc[r][t]);
          } else {
            acc[r][t] = Fma(w[v], Load(x[t] + k + v * kLanes), acc[r][t]);
          }
        }
      }
    }
  }
  for (; k < end; k += kLanes) {
    for (int r = 0; r < R; ++r) {
      const Vec w = rows[r].Load(k);
      for (int t = 0; t < T; ++t) acc[r][t] = Fma(w, Load(x[t] + k), acc[r][t]);
    }
  }
}

}  // namespace DSV4_ISA
}  // namespace dsv4
