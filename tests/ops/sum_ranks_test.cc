#include "ops/sum_ranks/sum_ranks.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "ops/kernels.h"
#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "support/ranks.h"

DSV4_DECLARE_KERNELS(SumRanksCpu, SumRanksArgs)

namespace dsv4::test {
namespace {

const std::vector<Kernel<SumRanksArgs>> kSumRanksKernels = DSV4_KERNELS(SumRanksCpu);

using Parts = std::vector<std::vector<float>>;

Parts MakeParts(Random& random, int count, int64_t n) {
  Parts parts;
  for (int r = 0; r < count; ++r) parts.push_back(random.Hostiles(n));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (n > 3) {
    parts[0][0] = std::nanf("");
    for (int r = 0; r < count; ++r) parts[static_cast<size_t>(r)][1] = -0.0f;  // the sum keeps its sign
    parts[0][2] = kInfinity;
    parts[static_cast<size_t>(count - 1)][3] = -kInfinity, parts[0][3] = kInfinity;  // NaN
  }
  return parts;
}

// The tree by hand, from the definition.
float Tree(const Parts& p, size_t i) {
  const auto at = [&](size_t r) { return p[r][i]; };
  switch (p.size()) {
    case 1:
      return at(0);
    case 2:
      return at(0) + at(1);
    case 4:
      return (at(0) + at(1)) + (at(2) + at(3));
    default:
      return ((at(0) + at(1)) + (at(2) + at(3))) + ((at(4) + at(5)) + (at(6) + at(7)));
  }
}

// The values of every rank after the sum.
Parts Sum(const Parts& parts, Shape shape, const std::function<void(const ExecContext&, const SumRanksArgs&)>& run,
          const ExecContext& ctx = {}) {
  Exchange exchange(static_cast<int>(parts.size()), {.timeout_s = 60});
  std::vector<std::unique_ptr<GuardBuffer<float>>> y;
  for (const auto& part : parts) y.push_back(std::make_unique<GuardBuffer<float>>(shape, part));
  RunRanks(
      exchange,
      [&](const ExecContext& mine, int r) { run(mine, {.y = y[static_cast<size_t>(r)]->tensor(), .site = 3}); }, ctx);
  EXPECT_TRUE(exchange.status().ok());
  Parts sums;
  for (auto& buffer : y) sums.push_back(buffer->values());
  return sums;
}

TEST(SumRanks, IsTheTreeOnEveryRankBitForBit) {
  Random random(1);
  for (const int count : {2, 4, 8}) {
    for (const Shape shape :
         {Shape{1, 1}, Shape{1, 7}, Shape{3, 64}, Shape{1, 4096}, Shape{5, 517}, Shape{128, 40}, Shape{67, 1030}}) {
      const Parts parts = MakeParts(random, count, shape.num_elements());
      std::vector<float> want;
      for (size_t i = 0; i < parts[0].size(); ++i) want.push_back(Tree(parts, i));
      for (const auto& got : Sum(parts, shape, SumRanks, Reference()))
        EXPECT_TRUE(BitEqual(got, want)) << "reference, " << count;
      ForEachKernel(kSumRanksKernels, [&](const auto run) {
        for (const auto& got : Sum(parts, shape, run))
          EXPECT_TRUE(BitEqual(got, want)) << count << " ranks, " << shape.ToString();
      });
    }
  }
}

// With own_rows the own rows have the same sums, and no rank writes to another rank's array.
TEST(SumRanks, OwnRowsHaveTheSameBits) {
  Random random(4);
  for (const int count : {2, 4, 8}) {
    for (const Shape shape : {Shape{1, 7}, Shape{9, 64}, Shape{61, 130}}) {
      const Parts parts = MakeParts(random, count, shape.num_elements());
      const auto own_rows = [](const auto run) {
        return [run](const ExecContext& ctx, const SumRanksArgs& args) {
          SumRanksArgs own = args;
          own.own_rows = true;
          run(ctx, own);
        };
      };
      const auto check = [&](const Parts& got) {
        for (int r = 0; r < count; ++r) {
          const RankShare rows = ShareOf(shape[0], r, count, kShareRows);
          std::vector<float> sums, want;
          for (int64_t i = rows.begin * shape[1]; i < rows.end * shape[1]; ++i) {
            sums.push_back(got[static_cast<size_t>(r)][static_cast<size_t>(i)]);
            want.push_back(Tree(parts, static_cast<size_t>(i)));
          }
          EXPECT_TRUE(BitEqual(sums, want)) << "rank " << r << " of " << count << ", " << shape.ToString();
        }
      };
      check(Sum(parts, shape, own_rows(SumRanks), Reference()));
      ForEachKernel(kSumRanksKernels, [&](const auto run) { check(Sum(parts, shape, own_rows(run))); });
    }
  }
}

// Rows do not depend on their batch.
TEST(SumRanks, ARowAloneHasTheSameBits) {
  Random random(2);
  const int64_t t = 9, d = 333;
  const Parts parts = MakeParts(random, 4, t * d);
  ForEachKernel(kSumRanksKernels, [&](const auto run) {
    const Parts all = Sum(parts, {t, d}, run);
    for (const int64_t row : {0, 4, 8}) {
      Parts one;
      for (const auto& part : parts) one.emplace_back(part.begin() + row * d, part.begin() + (row + 1) * d);
      const std::vector<float> want(all[0].begin() + row * d, all[0].begin() + (row + 1) * d);
      EXPECT_TRUE(BitEqual(Sum(one, {1, d}, run)[3], want));
    }
  });
}

TEST(SumRanks, OneRankIsTheIdentityAndWaitsForNobody) {
  Random random(3);
  const Parts parts = MakeParts(random, 1, 100);
  EXPECT_TRUE(BitEqual(Sum(parts, {4, 25}, SumRanks)[0], parts[0]));
  GuardBuffer<float> y({4, 25}, parts[0]);
  SumRanks({}, {.y = y.tensor()});
  EXPECT_TRUE(BitEqual(y.span(), parts[0]));
}

TEST(SumRanks, NothingToAddMeetsNobody) {
  Exchange exchange(2, {.timeout_s = 0});
  GuardBuffer<float> y(Shape{0, 8});
  SumRanks({.ranks = &exchange.view(0)}, {.y = y.tensor()});  // alone: it would wait without limit
}

// Many collectives in a row with random delays of the ranks: each sum is the input of the next.
TEST(SumRanks, RanksThatStumbleNeverMixSteps) {
  const int64_t d = 200, steps = 400;
  for (const int count : {2, 8}) {
    Exchange exchange(count, {.timeout_s = 60});
    std::atomic<int64_t> wrong = 0;
    RunRanks(exchange, [&](const ExecContext& ctx, int rank) {
      Random random(static_cast<uint64_t>(rank) + 10);
      std::vector<float> y(static_cast<size_t>(d));
      for (int64_t s = 0; s < steps; ++s) {
        for (int64_t i = 0; i < d; ++i) y[static_cast<size_t>(i)] = static_cast<float>((s + i) % 64 + rank);
        if (random.Chance(0.05)) std::this_thread::sleep_for(std::chrono::microseconds(random.Index(300)));
        SumRanks(ctx, {.y = {y.data(), DType::kF32, {1, d}}, .site = s});
        for (int64_t i = 0; i < d; ++i) {
          const int64_t want = count * ((s + i) % 64) + count * (count - 1) / 2;
          wrong += y[static_cast<size_t>(i)] != static_cast<float>(want);
        }
      }
    });
    EXPECT_EQ(wrong, 0);
  }
}

TEST(SumRanks, AFailedExchangeLetsEverybodyPass) {
  Exchange exchange(2, {.timeout_s = 0});
  exchange.Fail(Internal("a test"));
  GuardBuffer<float> y({1, 8}, std::vector<float>(8, 1.0f));
  SumRanks({.ranks = &exchange.view(1)}, {.y = y.tensor()});
  EXPECT_EQ(exchange.status().message(), "a test");
}

}  // namespace
}  // namespace dsv4::test
