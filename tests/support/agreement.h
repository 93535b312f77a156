// Agreement of logits with a reference, as docs/dev/numerics.md defines the tolerances.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <gtest/gtest.h>

namespace dsv4::test {

inline int64_t ArgMax(const float* row, int64_t v) { return std::max_element(row, row + v) - row; }

inline float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // a NaN stays
  }
  return largest;
}

struct Agreement {
  double relative_rms = 0, arg_max = 0, median_row = 0;  // median_row: of the rows' own relative errors
};

inline Agreement Compare(const std::vector<float>& got, const std::vector<float>& want, int64_t v) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0, size = 0;
  int64_t agreed = 0;
  const auto rows = static_cast<int64_t>(want.size()) / v;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  std::vector<double> row_errors;
  for (int64_t r = 0; r < rows; ++r) {
    double row_error = 0, row_size = 0;
    for (int64_t i = r * v; i < (r + 1) * v; ++i) {
      const auto at = static_cast<size_t>(i);
      row_error += std::pow(static_cast<double>(got[at]) - want[at], 2);
      row_size += std::pow(static_cast<double>(want[at]), 2);
    }
    row_errors.push_back(std::sqrt(row_error / row_size));
  }
  std::sort(row_errors.begin(), row_errors.end());
  for (int64_t r = 0; r < rows; ++r) agreed += ArgMax(got.data() + r * v, v) == ArgMax(want.data() + r * v, v);
  std::printf("row errors: median %.5f, 75%% %.5f, 90%% %.5f, 99%% %.5f, largest %.5f\n",
              row_errors[row_errors.size() / 2], row_errors[row_errors.size() * 3 / 4],
              row_errors[row_errors.size() * 9 / 10], row_errors[row_errors.size() * 99 / 100], row_errors.back());
  return {std::sqrt(error / size), static_cast<double>(agreed) / static_cast<double>(rows),
          row_errors[row_errors.size() / 2]};
}

inline void ExpectAgreement(const char* what, const Agreement& a, double rms, double arg_max) {
  std::printf("%s: relative RMS %.5f, arg-max agreement %.4f\n", what, a.relative_rms, a.arg_max);
  EXPECT_LE(a.relative_rms, rms) << what;
  EXPECT_GE(a.arg_max, arg_max) << what;
}

}  // namespace dsv4::test
