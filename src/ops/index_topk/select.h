// Exact top-k of scores, shared by every implementation of IndexTopk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dsv4 {

// Returns the min(k, n) indices of largest score, ties to the lower index, in ascending order; then -1 up to k. `order`
// is scratch. NaN scores rank last.
//
// It reads a long list once: it collects scores above the K-th best so far, and reduces 4 K of them to the best K. So a
// long context costs little more than reading its scores.
inline void SelectTopk(const float* score, int64_t n, int64_t k, std::vector<int32_t>& order, int32_t* out) {
  const int64_t count = std::min(n, k);
  if (n <= k) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i);
  } else {
    const auto better = [score](int32_t a, int32_t b) {
      const bool nan_a = score[a] != score[a], nan_b = score[b] != score[b];
      if (nan_a != nan_b) return nan_b;
      if (!nan_a && score[a] != score[b]) return score[a] > score[b];
      return a < b;
    };
    const int64_t room = n <= 16 * k ? n : 4 * k;
    order.resize(static_cast<size_t>(room));
    int64_t held = 0;
    const auto keep_best = [&] {
      std::nth_element(order.begin(), order.begin() + k - 1, order.begin() + held, better);
      held = k;
    };
    bool is_bounded = false;  // a score not above `bound` has K better ones: equal scores come later
    float bound = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (is_bounded && !(score[i] > bound)) continue;
      order[static_cast<size_t>(held++)] = static_cast<int32_t>(i);
      if (held < room) continue;
      keep_best();
      bound = score[order[static_cast<size_t>(k - 1)]];
      is_bounded = bound == bound;
    }
    keep_best();
    std::sort(order.begin(), order.begin() + k);
    std::copy(order.begin(), order.begin() + k, out);
  }
  std::fill(out + count, out + k, -1);
}

}  // namespace dsv4
