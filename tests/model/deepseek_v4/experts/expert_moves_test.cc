// Experts that swap while a device works: for every order of work and copies, every pass finds all experts.
#include "model/deepseek_v4/experts/expert_moves.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "model/deepseek_v4/experts/two_queues.h"
#include "support/random.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::Random;
using test::TwoQueues;

constexpr int64_t kLayers = 2, kExperts = 12, kResident = 4;
constexpr int64_t kCols = 16, kExpertBytes = 3 * 256;  // a matrix of one row of floats takes 256 bytes

class Moves : public ::testing::TestWithParam<int> {
 protected:
  Moves()
      : memory_(kLayers * kExperts * 3 * kCols),
        spare_(kMostSwapsAtOnce * kExpertBytes),
        layers_(kLayers),
        moves_(std::make_unique<TwoQueues::Copies>(queues_), spare_.data(), static_cast<int64_t>(spare_.size())) {
    std::iota(memory_.begin(), memory_.end(), 1.0f);  // no two numbers are equal
    for (size_t at = 0; at < kLayers * kExperts; ++at) {
      const auto matrix = [&](size_t m) {
        return QuantTensor{
            .rows = 1, .cols = kCols, .codes = reinterpret_cast<const uint8_t*>(&memory_[(3 * at + m) * kCols])};
      };
      layers_[at / kExperts].moe.experts.push_back({matrix(0), matrix(1), matrix(2)});
    }
    for (const LayerWeights& layer : layers_) table_.push_back(layer.moe.experts);
  }

  static bool OnHostAtFirst(int64_t expert) { return expert >= kResident; }
  static float Number(size_t layer, size_t expert, size_t m, size_t col) {
    return static_cast<float>(((layer * kExperts + expert) * 3 + m) * kCols + col + 1);
  }
  // Reads all experts at the addresses in the table, one by one, with other work in between.
  void Pass() {
    for (size_t l = 0; l < kLayers; ++l) {
      for (size_t e = 0; e < kExperts; ++e) {
        queues_.Work([=, this] {
          const ExpertWeights& expert = table_[l][e];
          const QuantTensor* matrices[] = {&expert.gate, &expert.up, &expert.down};
          for (size_t i = 0; i < 3 * kCols; ++i) {
            float number;
            std::memcpy(&number, matrices[i / kCols]->codes + 4 * (i % kCols), 4);
            ASSERT_EQ(number, Number(l, e, i / kCols, i % kCols)) << "layer " << l << ", expert " << e;
          }
          ++read_;
        });
      }
    }
  }
  void Take() {
    const std::span<const ExpertMove> arrived = moves_.Arrived();
    if (arrived.empty()) return;
    for (const ExpertMove& move : arrived) {
      const auto l = static_cast<size_t>(move.layer), e = static_cast<size_t>(move.expert);
      layers_[l].moe.experts[e] = move.to;
      on_host_[l][e] = move.to_host;
      queues_.Work([this, l, e, to = move.to] { table_[l][e] = to; });
    }
    moves_.Named();
  }
  int64_t BeginSome(Random& random) {
    std::vector<ExpertSwap> swaps;
    for (int i = 0; i < 20; ++i) {
      const ExpertSwap s{random.Index(kLayers), random.Index(kExperts), random.Index(kExperts)};
      const std::vector<bool>& on_host = on_host_[static_cast<size_t>(s.layer)];
      if (on_host[static_cast<size_t>(s.in)] && !on_host[static_cast<size_t>(s.out)]) swaps.push_back(s);
    }
    return moves_.Begin(swaps, layers_);
  }

  TwoQueues queues_;
  std::vector<float> memory_;
  std::vector<uint8_t> spare_;
  std::vector<LayerWeights> layers_;
  std::vector<std::vector<ExpertWeights>> table_;  // the table that work reads
  std::vector<std::vector<bool>> on_host_ = std::vector<std::vector<bool>>(kLayers, [] {
    std::vector<bool> layer(kExperts);
    for (int64_t e = 0; e < kExperts; ++e) layer[static_cast<size_t>(e)] = OnHostAtFirst(e);
    return layer;
  }());
  ExpertMoves moves_;
  int64_t read_ = 0;
};

TEST_P(Moves, EveryPassFindsAllExperts) {
  Random random(static_cast<uint64_t>(GetParam()) + 1);
  int64_t passes = 0, pairs = 0;
  for (int i = 0; i < 400 && !HasFatalFailure(); ++i) {
    if (random.Index(3) == 0) Pass(), ++passes;
    queues_.RunSome(random, random.Index(40));
    if (random.Index(2) == 0) Take();
    if (!moves_.busy()) pairs += BeginSome(random);
  }
  while (moves_.busy() && !HasFatalFailure()) {
    queues_.RunAll(random);
    Take();
  }
  Pass();
  queues_.RunAll(random);
  EXPECT_EQ(read_, (passes + 1) * kLayers * kExperts);
  EXPECT_GT(pairs, 20);
  EXPECT_EQ(moves_.moved_bytes(), 2 * pairs * kExpertBytes);
  std::set<const uint8_t*> places;
  for (const LayerWeights& layer : layers_) {
    for (const ExpertWeights& e : layer.moe.experts) places.insert(e.gate.codes);
  }
  EXPECT_EQ(places.size(), static_cast<size_t>(kLayers * kExperts)) << "each has one of its own";
  for (const uint8_t* place : places) EXPECT_FALSE(place >= spare_.data() && place < spare_.data() + spare_.size());
  for (const std::vector<bool>& layer : on_host_) EXPECT_EQ(std::count(layer.begin(), layer.end(), false), kResident);
}

INSTANTIATE_TEST_SUITE_P(Orders, Moves, ::testing::Range(0, 20));

TEST_F(Moves, AnExpertMovesOnceAtATimeAndOnlyWhereItHasRoom) {
  const std::vector<ExpertSwap> swaps = {{0, 4, 0}, {0, 4, 1}, {0, 5, 0}, {1, 4, 0}, {1, 5, 1}, {1, 6, 2}, {1, 7, 3}};
  EXPECT_EQ(moves_.Begin(swaps, layers_), kMostSwapsAtOnce);
  EXPECT_EQ(moves_.moved_bytes(), 2 * kMostSwapsAtOnce * kExpertBytes);
  Random random(1);
  for (int i = 0; i < 3; ++i) queues_.RunAll(random), Take();
  EXPECT_FALSE(moves_.busy());
  EXPECT_FALSE(on_host_[0][4]);
  EXPECT_TRUE(on_host_[0][5]) << "its place was taken";
  EXPECT_TRUE(on_host_[1][7]) << "one too many";
  layers_[0].moe.experts[6].down.cols = kCols / 2;
  EXPECT_EQ(moves_.Begin(std::vector<ExpertSwap>{{0, 6, 4}}, layers_), 0) << "of another size";
  EXPECT_FALSE(moves_.busy());
}

}  // namespace
}  // namespace dsv4::deepseek_v4
