#include "ops/round_index_query/round_index_query.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kv/row_format.h"
#include "ops/round_index_query/hadamard.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "tensor/codec/bf16.h"

namespace dsv4::test {
namespace {

void RoundIndexQueryOnGpu(const ExecContext&, const RoundIndexQueryArgs& a) {
  Mirror gpu;
  RoundIndexQuery(gpu.ctx(), {.q = gpu.Out(a.q), .dtype = a.dtype});
  gpu.Finish();
}

// Sylvester's matrix: element [i, j] is -1 to the number of common ones of i and j.
std::vector<double> HadamardDouble(const std::vector<float>& x) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) y[i] += (std::popcount(i & j) % 2 ? -1.0 : 1.0) * x[j];
    y[i] /= std::sqrt(static_cast<double>(x.size()));
  }
  return y;
}

// Blocks of 32: s the smallest power of two with max <= 6 s; the nearest multiple of s among the E2M1 numbers, ties
// to the even code. Exact search in float64.
std::vector<double> RoundFp4Double(const std::vector<double>& x) {
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::vector<double> y;
  for (size_t b = 0; b < x.size(); b += 32) {
    double largest = 0, s = 1;
    for (size_t i = b; i < b + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    while (largest > 6 * s) s *= 2;
    while (largest <= 3 * s) s /= 2;
    for (size_t i = b; i < b + 32; ++i) {
      size_t best = 0;
      for (size_t c = 1; c < 8; ++c) {
        const double d = std::fabs(std::fabs(x[i]) / s - kValues[c]),
                     old = std::fabs(std::fabs(x[i]) / s - kValues[best]);
        if (d < old || (d == old && c % 2 == 0)) best = c;
      }
      y.push_back(std::copysign(kValues[best] * s, x[i]));
    }
  }
  return y;
}

TEST(Hadamard, IsSylvestersMatrixAndItsOwnInverse) {
  Random random(1);
  for (const int64_t n : {1, 2, 32, 64, 128, 256}) {
    const std::vector<float> x = random.Normals(n);
    std::vector<float> y = x;
    Hadamard(y.data(), n);
    double norm = 0;
    for (const float v : x) norm += std::fabs(v);
    const double bound = Gamma(10) * norm;  // log2(n) sums and one product
    EXPECT_TRUE(Near(y, HadamardDouble(x), bound)) << n;
    Hadamard(y.data(), n);
    EXPECT_TRUE(Near(y, x, 2 * bound)) << n;
  }
}

DSV4_DEVICE_TEST(RoundIndexQuery, Fp4RotatesThenRoundsInBlocksOf32) {
  Random random(2);
  const int64_t t = 5, ni = 3, di = 64;  // 64^-1/2 = 1/8: with small integers every step is exact
  std::vector<float> before(static_cast<size_t>(t * ni * di));
  for (float& v : before) v = static_cast<float>(random.Index(17) - 8);
  std::vector<double> want;
  for (int64_t h = 0; h < t * ni; ++h) {
    for (int64_t i = 0; i < di; ++i) want.push_back(0);
    const std::vector<double> row = RoundFp4Double(
        HadamardDouble({before.begin() + h * di, before.begin() + (h + 1) * di}));
    std::copy(row.begin(), row.end(), want.end() - di);
  }
  for (const auto& c : Places(on, RoundIndexQuery, RoundIndexQueryOnGpu)) {
    GuardBuffer<float> q(Shape{t, ni, di}, before);
    c.run({.q = q.tensor(), .dtype = IndexDtype::kFp4});
    EXPECT_TRUE(Near(q.span(), want, 0)) << c.name;
  }
}

DSV4_DEVICE_TEST(RoundIndexQuery, Bf16AndF32DoNotRotate) {
  Random random(3);
  const std::vector<float> before = random.Hostiles(2 * 2 * 32);
  for (const auto& c : Places(on, RoundIndexQuery, RoundIndexQueryOnGpu)) {
    GuardBuffer<float> q(Shape{2, 2, 32}, before);
    c.run({.q = q.tensor(), .dtype = IndexDtype::kF32});
    EXPECT_TRUE(BitEqual(q.span(), before)) << c.name;
    c.run({.q = q.tensor(), .dtype = IndexDtype::kBf16});
    for (int64_t i = 0; i < q.size(); ++i) ASSERT_EQ(q[i], RoundToBf16(before[static_cast<size_t>(i)])) << c.name;
  }
}

// Queries and keys have the same rotation, so their products do not change; a rotation on one side only would fail.
TEST(RoundIndexQuery, ProductsSurviveRotationAndRounding) {
  Random random(4);
  const RowFormat key_format = IndexKeyFormat(IndexDtype::kFp4, 128);
  double error = 0, norm = 0, one_sided = 0;
  for (int round = 0; round < 50; ++round) {
    const std::vector<float> q = random.Normals(128);
    std::vector<float> k = random.Normals(128);
    for (size_t i = 0; i < 128; ++i) k[i] += q[i];
    double exact = 0, rounded = 0, wrong = 0;
    for (size_t i = 0; i < 128; ++i) exact += static_cast<double>(q[i]) * k[i];
    GuardBuffer<float> query(Shape{1, 1, 128}, q);
    RoundIndexQuery({}, {.q = query.tensor(), .dtype = IndexDtype::kFp4});
    std::vector<float> key = k;
    Hadamard(key.data(), 128);
    RoundRow(key_format, key.data());
    for (size_t i = 0; i < 128; ++i) {
      rounded += static_cast<double>(query[static_cast<int64_t>(i)]) * key[i];
      wrong += static_cast<double>(query[static_cast<int64_t>(i)]) * k[i];
    }
    error += (rounded - exact) * (rounded - exact);
    one_sided += (wrong - exact) * (wrong - exact);
    norm += exact * exact;
  }
  EXPECT_LT(std::sqrt(error / norm), 0.1);
  EXPECT_GT(std::sqrt(one_sided / norm), 0.5);
}

DSV4_DEVICE_TEST(RoundIndexQuery, AHeadDoesNotDependOnItsNeighbours) {
  Random random(5);
  const std::vector<float> before = random.Normals(40 * 32);
  for (const auto& c : Places(on, RoundIndexQuery, RoundIndexQueryOnGpu)) {
    GuardBuffer<float> all(Shape{10, 4, 32}, before);
    c.run({.q = all.tensor(), .dtype = IndexDtype::kFp4});
    for (const int64_t h : {0, 13, 39}) {
      GuardBuffer<float> one(Shape{1, 1, 32}, {before.begin() + h * 32, before.begin() + (h + 1) * 32});
      c.run({.q = one.tensor(), .dtype = IndexDtype::kFp4});
      EXPECT_TRUE(BitEqual(one.span(), all.span().subspan(static_cast<size_t>(h * 32), 32))) << c.name;
    }
  }
}

// The rotation adds in the reference's order everywhere, so that no code can flip.
DSV4_DEVICE_TEST(RoundIndexQuery, BitEqualToReference) {
  Random random(6);
  for (const int64_t di : {32, 64, 128, 256}) {
    for (const IndexDtype dtype : {IndexDtype::kFp4, IndexDtype::kBf16, IndexDtype::kF32}) {
      for (const auto& [t, ni] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 64}}) {
        std::vector<float> before;
        for (int64_t r = 0; r < t * ni; ++r) {
          std::vector<float> row = r % 3 ? random.Normals(di, r % 2 ? 1e-3f : 1.0f) : random.Hostiles(di);
          if (r == 4) std::fill(row.begin(), row.end(), 0.0f);
          before.insert(before.end(), row.begin(), row.end());
        }
        GuardBuffer<float> want({t, ni, di}, before);
        RoundIndexQuery({.reference_ops = true}, {.q = want.tensor(), .dtype = dtype});
        for (const auto& c : Places(on, RoundIndexQuery, RoundIndexQueryOnGpu)) {
          GuardBuffer<float> got({t, ni, di}, before);
          c.run({.q = got.tensor(), .dtype = dtype});
          EXPECT_TRUE(BitEqual(got.span(), want.span())) << c.name << " " << di << " " << static_cast<int>(dtype);
        }
      }
    }
  }
}

TEST(RoundIndexQueryDeathTest, RefusesDimensionsThatCannotRotate) {
  GuardBuffer<float> q(Shape{1, 1, 96});
  EXPECT_DEATH(RoundIndexQuery({}, {.q = q.tensor()}), "index head dim 96");
}

}  // namespace
}  // namespace dsv4::test
