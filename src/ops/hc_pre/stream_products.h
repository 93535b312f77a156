// The common parts of hc_pre and hc_head: the products of the flattened streams with `fn`, and the weighted sum of the
// streams.
#pragma once

#include <cmath>
#include <vector>

#include "base/thread_pool.h"
#include "ops/linear/rows/input_rows.h"
#include "ops/square_sum.h"

namespace dsv4::DSV4_ISA {

// m[t, n] = fn[n] . x[t] for x f32 [T, K]. Threads divide the rows of fn, or the tokens if there are many.
class StreamProducts {
 public:
  const float* Multiply(ThreadPool* pool, const QuantTensor& fn, const float* x, int64_t num_tokens) {
    inputs_.Set(pool, num_tokens, 1, fn.cols, OrderOf(fn.format), [&](int64_t t) { return x + t * fn.cols; });
    products_.resize(static_cast<size_t>(num_tokens * fn.rows));
    outputs_.resize(static_cast<size_t>(num_tokens));
    for (int64_t t = 0; t < num_tokens; ++t) outputs_[static_cast<size_t>(t)] = products_.data() + t * fn.rows;
    const RowProduct all{.w = &fn, .x = inputs_.rows(), .y = outputs_.data(), .num_tokens = num_tokens};
    const int64_t tiles = CeilDiv(fn.rows, kTileRows), products_per_token = fn.rows * fn.cols;
    if (num_tokens >= kRowBlock) {
      ParallelFor(pool, num_tokens, kRowBlock, [&](int64_t begin, int64_t end, int) {
        RowProduct part = all;
        part.x += begin;
        part.y += begin;
        part.num_tokens = end - begin;
        MultiplyRows(part, 0, fn.rows);
      });
    } else {
      const int64_t grain = products_per_token * num_tokens < (1 << 17) ? tiles : 1;
      ParallelFor(pool, tiles, grain, [&](int64_t begin, int64_t end, int) {
        RowProduct part = all;
        part.y_offset = begin * kTileRows;
        MultiplyRows(part, begin * kTileRows, std::min(fn.rows, end * kTileRows));
      });
    }
    return products_.data();
  }

 private:
  InputRows inputs_;
  std::vector<float> products_;
  std::vector<float*> outputs_;
};

// 1 / sqrt(mean(x^2) + eps)
DSV4_INLINE float InverseRms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(SquareSum(x, n) / static_cast<float>(n) + eps);
}

// out[i] = sum_j weight[j] * streams[j, i], j in order
DSV4_INLINE void MixStreams(const float* weight, int64_t h, const float* streams, int64_t d, float* out) {
  const int64_t whole = d / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Vec sum = Zero();
    for (int64_t j = 0; j < h; ++j) sum = Fma(Set(weight[j]), Load(streams + j * d + i), sum);
    Store(out + i, sum);
  }
  if (whole == d) return;
  Vec sum = Zero();
  for (int64_t j = 0; j < h; ++j) sum = Fma(Set(weight[j]), LoadPartial(streams + j * d + whole, d - whole), sum);
  StorePartial(out + whole, sum, d - whole);
}

}  // namespace dsv4::DSV4_ISA
