// Exact top-k of scores, shared by every implementation of IndexTopk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dsv4 {

// The min(k, n) indices of largest score, ties to the lower index, in ascending order; then -1 up to k.
// `order` is scratch. NaN scores rank below everything.
inline void SelectTopk(const float* score, int64_t n, int64_t k, std::vector<int32_t>& order, int32_t* out) {
  const int64_t count = std::min(n, k);
  if (n <= k) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i);
  } else {
    order.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    const auto better = [score](int32_t a, int32_t b) {
      const bool nan_a = score[a] != score[a], nan_b = score[b] != score[b];
      if (nan_a != nan_b) return nan_b;
      if (!nan_a && score[a] != score[b]) return score[a] > score[b];
      return a < b;
    };
    std::nth_element(order.begin(), order.begin() + count, order.end(), better);
    std::sort(order.begin(), order.begin() + count);
    std::copy(order.begin(), order.begin() + count, out);
  }
  std::fill(out + count, out + k, -1);
}

}  // namespace dsv4
