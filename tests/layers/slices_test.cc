// The order in which slices are added: the tree of ranks, for every division.
#include "layers/slices.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

constexpr int64_t kSliceTokens = 3, kSliceDim = 5;

// Values whose sum depends on the order.
float ValueOf(int slice, int64_t i) {
  return std::ldexp(1.0f + 0.37f * static_cast<float>(i), (slice * 7 + static_cast<int>(i)) % 23);
}

// SumSlices of slices [first, first + count).
std::vector<float> SumOf(int first, int count) {
  std::vector<float> y(kSliceTokens * kSliceDim, NAN);
  std::vector<float> sums(static_cast<size_t>(SliceLevels(count) * 4 * kSliceDim), NAN);
  const Tensor into{y.data(), DType::kF32, {kSliceTokens, kSliceDim}};
  std::vector<int> order;
  SumSlices({}, count, {sums.data(), DType::kF32, {SliceLevels(count), 4, kSliceDim}}, into,
            [&](int k, const Tensor& part) {
              order.push_back(k);
              for (int64_t i = 0; i < part.num_elements(); ++i) part.f32()[i] = ValueOf(first + k, i);
            });
  for (int k = 0; k < count; ++k) EXPECT_EQ(order[static_cast<size_t>(k)], k);
  return y;
}

// The sum in the order of ranks (op sum_ranks).
std::vector<float> TreeOf(std::vector<std::vector<float>> parts) {
  for (size_t width = 1; width < parts.size(); width *= 2) {
    for (size_t r = 0; r < parts.size(); r += 2 * width) {
      for (size_t i = 0; i < parts[r].size(); ++i) parts[r][i] += parts[r + width][i];
    }
  }
  return parts[0];
}

TEST(SumSlices, AnyNumberOfRanksAddsTheSameTree) {
  const std::vector<float> want = SumOf(0, 8);
  for (const int ranks : {2, 4, 8}) {
    std::vector<std::vector<float>> parts;
    for (int r = 0; r < ranks; ++r) parts.push_back(SumOf(r * 8 / ranks, 8 / ranks));
    EXPECT_EQ(TreeOf(std::move(parts)), want) << ranks;
  }
  // In sequence they would give another sum.
  std::vector<float> in_order(kSliceTokens * kSliceDim, 0);
  for (int k = 0; k < 8; ++k) {
    for (size_t i = 0; i < in_order.size(); ++i) in_order[i] += ValueOf(k, static_cast<int64_t>(i));
  }
  EXPECT_NE(in_order, want);
}

TEST(SumSlices, KeepsAPartialSumForEachLevel) {
  EXPECT_EQ(SliceLevels(1), 0);
  EXPECT_EQ(SliceLevels(2), 1);
  EXPECT_EQ(SliceLevels(8), 3);
}

}  // namespace
}  // namespace dsv4
