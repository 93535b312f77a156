#include "layers/expert_share.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/str.h"
#include "ops/idle_row.h"
#include "support/compare.h"
#include "support/experts_fixture.h"
#include "support/experts_in_tiles.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

std::vector<ChosenExpert> ChosenBy(const std::vector<int64_t>& rows) {
  std::vector<ChosenExpert> chosen;
  for (const int64_t n : rows) chosen.push_back({.expert = static_cast<int32_t>(chosen.size()), .rows = n});
  return chosen;
}
int64_t ShareOf(const std::vector<int64_t>& rows, const ExpertTimes& times) {
  std::vector<ChosenExpert> chosen = ChosenBy(rows);
  return ShareOfCpu(chosen, times);
}

TEST(ExpertShare, FollowsTheRates) {
  EXPECT_EQ(ShareOf({}, {.link = 1, .cpu = 1}), 0);
  EXPECT_EQ(ShareOf({1}, {.link = 1, .cpu = 2}), 0) << "the link is faster";
  EXPECT_EQ(ShareOf({1}, {.link = 2, .cpu = 1}), 1);
  EXPECT_EQ(ShareOf({1, 1, 1, 1}, {.link = 1, .cpu = 1}), 2) << "side by side";
  EXPECT_EQ(ShareOf({1, 1, 1}, {.link = 1, .cpu = 10}), 0) << "one on the CPU takes longer than three on the link";
  EXPECT_EQ(ShareOf({1, 1, 1, 1}, {.link = 1, .cpu = 3}), 1) << "even a slow CPU helps";
  EXPECT_EQ(ShareOf({1, 1, 1}, {.link = 10, .cpu = 1}), 3);
  EXPECT_EQ(ShareOf({8, 8}, {.link = 1, .cpu = 0.9, .row = 0.5}), 0) << "many rows are the link's";
  EXPECT_EQ(ShareOf({1, 1}, {}), 0) << "nothing was measured";
}

TEST(ExpertShare, TheCpuTakesThoseOfFewRows) {
  std::vector<ChosenExpert> chosen = ChosenBy({9, 1, 4, 1});
  EXPECT_EQ(ShareOfCpu(chosen, {.link = 1, .cpu = 1, .row = 0.5}), 2);
  EXPECT_EQ(chosen[0].expert, 1);
  EXPECT_EQ(chosen[1].expert, 3);
}

// No other set of experts on the CPU ends earlier.
TEST(ExpertShare, IsTheBestOfAllSets) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> rows(static_cast<size_t>(1 + random.Index(8)));
    for (int64_t& n : rows) n = 1 + random.Index(12);
    const ExpertTimes times{
        .link = random.Uniform(0.1, 2), .cpu = random.Uniform(0.1, 2), .row = random.Uniform(0, 0.5)};
    const auto end_of = [&](const std::vector<ChosenExpert>& chosen, uint32_t on_cpu) {
      double cpu = 0, link = 0;
      for (size_t i = 0; i < chosen.size(); ++i) {
        if ((on_cpu >> i & 1u) != 0) {
          cpu += times.cpu + times.row * static_cast<double>(chosen[i].rows - 1);
        } else {
          link += times.link;
        }
      }
      return std::max(cpu, link);
    };
    std::vector<ChosenExpert> chosen = ChosenBy(rows);
    const int64_t share = ShareOfCpu(chosen, times);
    const double got = end_of(chosen, (1u << share) - 1);
    for (uint32_t set = 0; set < 1u << chosen.size(); ++set) EXPECT_LE(got, end_of(chosen, set) + 1e-12);
  }
}

TEST(SplitChoices, EveryPairGoesToOneSideInItsOrder) {
  Random random(5);
  constexpr int32_t kExperts = 7, kShared = kExperts;  // the shared expert has the number after the last one
  for (const int64_t rows : {1, 2, 5, 17, 64}) {
    for (const int taken_of_8 : {0, 1, 4, 8}) {
      const int64_t slots = 4;
      std::vector<int32_t> experts;
      std::vector<float> weights;
      for (int64_t i = 0; i < rows * slots; ++i) {
        experts.push_back(i % slots == 0       ? kShared
                          : random.Chance(0.1) ? kNoExpert
                                               : static_cast<int32_t>(random.Index(kExperts)));
        weights.push_back(static_cast<float>(i + 1));
      }
      std::vector<uint8_t> taken(kExperts);
      for (uint8_t& t : taken) t = random.Index(8) < taken_of_8 ? 1 : 0;
      Choices cpu, device;
      SplitChoices(experts, weights, rows, taken, &cpu, &device);
      for (const Choices* c : {&cpu, &device}) {
        ASSERT_EQ(c->rows, rows);
        ASSERT_EQ(c->experts.size(), static_cast<size_t>(rows * c->slots));
        ASSERT_EQ(c->weights.size(), c->experts.size());
        int64_t most = 0;
        for (int64_t t = 0; t < rows; ++t) {
          std::vector<std::pair<int32_t, float>> want, got;
          for (auto i = static_cast<size_t>(t * slots); i < static_cast<size_t>((t + 1) * slots); ++i) {
            const bool mine = experts[i] != kNoExpert &&
                              (experts[i] < kExperts && taken[static_cast<size_t>(experts[i])] != 0) == (c == &cpu);
            if (mine) want.emplace_back(experts[i], weights[i]);
          }
          most = std::max(most, static_cast<int64_t>(want.size()));
          for (auto i = static_cast<size_t>(t * c->slots); i < static_cast<size_t>((t + 1) * c->slots); ++i) {
            if (c->experts[i] != kNoExpert) got.emplace_back(c->experts[i], c->weights[i]);
          }
          EXPECT_EQ(got, want) << "row " << t << " of " << rows;
          const auto begin = c->experts.begin() + static_cast<std::ptrdiff_t>(t * c->slots), end = begin + c->slots;
          EXPECT_TRUE(std::is_partitioned(begin, end, [](int32_t e) { return e != kNoExpert; }));
        }
        EXPECT_EQ(c->slots, most);
      }
    }
  }
}

TEST(SplitChoices, NothingIsChosen) {
  Choices cpu, device;
  const std::vector<int32_t> none(6, kNoExpert);
  const std::vector<float> weights(6);
  SplitChoices(none, weights, 2, std::vector<uint8_t>(4, 1), &cpu, &device);
  EXPECT_EQ(cpu.slots, 0);
  EXPECT_EQ(device.slots, 0);
  SplitChoices({}, {}, 0, std::vector<uint8_t>(4, 1), &cpu, &device);
  EXPECT_EQ(cpu.slots, 0);
}

// The op's sums over the chosen experts that are in `taken`; `matrices` in their current layout.
std::vector<float> SumsOf(ExpertsLayer& l, const std::vector<ExpertMatrices>& matrices, const ExecContext& ctx,
                          const std::vector<uint8_t>& taken, bool taken_ones) {
  std::vector<int32_t> kept(l.experts.span().begin(), l.experts.span().end());
  for (int32_t& e : kept) {
    if ((taken[static_cast<size_t>(e)] != 0) != taken_ones) e = kNoExpert;
  }
  const int64_t pairs = l.t * l.slots;
  std::vector<float> hidden(static_cast<size_t>(pairs * 2 * l.f)), outputs(static_cast<size_t>(pairs * l.d)),
      y(static_cast<size_t>(l.t * l.d));
  const Tensor out{y.data(), DType::kF32, {l.t, l.d}};
  Experts(ctx, {.x = l.x.tensor(),
                .experts = {kept.data(), DType::kI32, {l.t, l.slots}},
                .weights = l.weights.tensor(),
                .matrices = matrices,
                .limit = kSwigluLimit,
                .hidden = {hidden.data(), DType::kF32, {pairs, 2 * l.f}},
                .outputs = {outputs.data(), DType::kF32, {pairs, l.d}},
                .shared = out,
                .y = out});
  return y;
}

// From 1 to 64 rows, in every format of experts, in rows and in tiles. None, some and all experts are taken; several
// rows choose one expert, and some choose it twice.
TEST(ExpertSums, AreTheOpsAndAddUpWithTheDevicesPart) {
  ThreadPool pool(2);
  const ExecContext two_threads{.pool = &pool}, reference{.reference_ops = true};
  ExpertSums sums;  // one object, as in a model: a call must not depend on the previous one
  for (const QuantCase& kind : ExpertQuantCases()) {
    Random random(11);
    for (const auto& [t, experts, slots] : {std::tuple{int64_t{1}, 6, int64_t{3}}, {2, 2, 3}, {5, 9, 4}, {64, 5, 2}}) {
      SCOPED_TRACE(StrCat(kind.name(), ", rows ", t));
      ExpertsLayer l(random, kind, experts, 96, 64, t, slots);
      std::vector<ExpertMatrices> homes = l.matrices;
      std::unique_ptr<ExpertsInTiles> tiles;
      if (kind.format != WeightFormat::kF32) {
        tiles = std::make_unique<ExpertsInTiles>(l.matrices);
        homes = tiles->matrices();
      }
      for (const int taken_of_4 : {1, 2, 4}) {
        std::vector<uint8_t> taken(static_cast<size_t>(experts));
        for (uint8_t& e : taken) e = random.Index(4) < taken_of_4 ? 1 : 0;
        taken[static_cast<size_t>(l.experts[0])] = 1;
        const std::vector<uint8_t> all(taken.size(), 1);
        Choices cpu, device;
        SplitChoices(l.experts.span(), l.weights.span(), t, taken, &cpu, &device);
        std::vector<float> got(static_cast<size_t>(t * l.d), 7.0f);
        const Tensor out{got.data(), DType::kF32, {t, l.d}};
        sums.Compute(&pool, l.x.tensor(), cpu, homes, kSwigluLimit, ActivationDtype::kNative, out);
        EXPECT_TRUE(BitEqual(got, SumsOf(l, l.matrices, two_threads, taken, true)));
        // 160 products and 4 choices, of 2^-24 each.
        EXPECT_TRUE(RelativeRmsWithin(got, SumsOf(l, l.matrices, reference, taken, true), 164 * 0x1p-24));
        const std::vector<float> rest = SumsOf(l, l.matrices, two_threads, taken, false),
                                 whole = SumsOf(l, l.matrices, reference, all, true);
        for (size_t i = 0; i < got.size(); ++i) got[i] += rest[i];
        EXPECT_TRUE(RelativeRmsWithin(got, whole, 164 * 0x1p-24));
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
