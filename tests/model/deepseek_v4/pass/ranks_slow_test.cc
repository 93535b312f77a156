// The forward pass of several ranks on one CPU against the float64 reference: weights divided, outputs summed, logits
// gathered.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/tensor_source.h"
#include "kv/sequence_cache.h"
#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/pass/forward.h"
#include "support/fixture.h"
#include "support/ranks.h"

namespace dsv4::test {
namespace {

using namespace deepseek_v4;

constexpr NumericsModes kExact = {KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kF32};

// One rank's model with its own cache and buffers.
struct RankModel {
  RankModel(const Config& config, const Weights& whole, const NumericsModes& modes, Sharding sharding,
            int64_t max_tokens)
      : model(
            MakeModel(ShardConfig(config, sharding), std::move(ShardWeights(whole, sharding, nullptr)).value(), modes)),
        memory(model.kv_layout),
        cache(std::move(SequenceCache::Create(memory)).value()),
        activations(model.config, max_tokens, max_tokens) {}

  // Appends tokens [begin, end); logits of all of them.
  void Append(const ExecContext& ctx, const std::vector<int32_t>& tokens, int64_t begin, int64_t end) {
    ASSERT_TRUE(cache->Reserve(end).ok());
    Step step;
    for (int64_t i = begin; i < end; ++i) {
      step.tokens.push_back(tokens[static_cast<size_t>(i)]);
      step.positions.push_back(i);
      step.sequence_of.push_back(0);
      step.logit_rows.push_back(static_cast<int32_t>(i - begin));
    }
    step.sequences = {cache->View(begin, 0, end - begin)};
    const Tensor rows = activations.logits.Head(end - begin);
    Forward(ctx, model, HostView(step), activations, rows);
    logits.insert(logits.end(), rows.f32(), rows.f32() + rows.num_elements());
  }

  Model model;
  KvMemory memory;
  std::unique_ptr<SequenceCache> cache;
  Activations activations;
  std::vector<float> logits;  // [T, V]
};

struct FixtureModel {
  explicit FixtureModel(const std::string& dir)
      : config(std::move(LoadConfig(dir)).value()),
        weights(std::move(BindWeights(config, std::move(TensorSource::Open(dir)).value())).value()),
        tokens(ReferenceArray(dir, "prompt_ids").i32) {}

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }

  // Runs all tokens on `count` ranks, in steps that end at `ends`.
  std::vector<std::unique_ptr<RankModel>> Run(int count, const std::vector<int64_t>& ends, const NumericsModes& modes,
                                              ExecContext ctx = {}) const {
    Exchange exchange(count, {.timeout_s = 60});
    std::vector<std::unique_ptr<RankModel>> ranks;
    for (int r = 0; r < count; ++r)
      ranks.push_back(std::make_unique<RankModel>(config, weights, modes, Sharding{r, count}, num_tokens()));
    RunRanks(
        exchange,
        [&](const ExecContext& mine, int r) {
          int64_t begin = 0;
          for (const int64_t end : ends)
            ranks[static_cast<size_t>(r)]->Append(mine, tokens, std::exchange(begin, end), end);
        },
        ctx);
    EXPECT_TRUE(exchange.status().ok()) << exchange.status().message();
    return ranks;
  }

  Config config;
  Weights weights;
  std::vector<int32_t> tokens;
};

std::vector<int64_t> Chunks(int64_t size, int64_t t) {
  std::vector<int64_t> ends;
  for (int64_t end = size; end < t; end += size) ends.push_back(end);
  ends.push_back(t);
  return ends;
}
std::vector<int64_t> DecodeFrom(int64_t first, int64_t t) {
  std::vector<int64_t> ends;
  for (int64_t end = std::min(first, t); end <= t; ++end) ends.push_back(end);
  return ends;
}

struct Case {
  const char* fixture;
  int count;
};
class RanksOfFixture : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, RanksOfFixture,
                         testing::Values(Case{"mini-bf16", 2}, Case{"flash-nvfp4", 2}, Case{"flash-all-nvfp4", 2},
                                         Case{"flash-mtp", 2}, Case{"flash-dspark", 2}, Case{"pro-official", 2},
                                         Case{"pro-official", 4}, Case{"flash-8-groups", 2}, Case{"flash-8-groups", 4},
                                         Case{"flash-8-groups", 8}),
                         [](const auto& instance) {
                           std::string name = instance.param.fixture;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_on_" + std::to_string(instance.param.count);
                         });

// Whole, in chunks, and token by token after 130: within the reference's tolerance, with the same bits on all ranks.
TEST_P(RanksOfFixture, LogitsMatchTheReferenceAndAllRanksAgree) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam().fixture);
  const FixtureModel f(dir);
  ASSERT_TRUE(CheckSharding(f.config, f.weights, GetParam().count).ok())
      << CheckSharding(f.config, f.weights, GetParam().count).message();
  const std::vector<float> reference = ReferenceArray(dir, "logits").f32;
  const int64_t t = f.num_tokens();
  std::vector<float> first;
  for (const auto& ends : {Chunks(t, t), Chunks(37, t), DecodeFrom(130, t)}) {
    const auto ranks = f.Run(GetParam().count, ends, kExact);
    if (first.empty()) first = ranks[0]->logits;
    ASSERT_GE(reference.size(), first.size());
    for (const auto& rank : ranks) EXPECT_EQ(rank->logits, first);
  }
  double largest = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(first[i]) - reference[i]);
    if (!(difference <= largest)) largest = difference;  // a NaN stays
  }
  EXPECT_LE(largest, 2e-3);  // docs/dev/numerics.md
}

// Every rank computes every KV row from the same bits, so snapshots store one rank's copy.
TEST_P(RanksOfFixture, OneRanksKvStandsForAll) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam().fixture);
  const FixtureModel f(dir);
  const int count = GetParam().count;
  const int64_t t = f.num_tokens(), cut = t - 5;
  const std::vector<float> want = f.Run(count, {cut, t}, {})[0]->logits;
  Exchange exchange(count, {.timeout_s = 60});
  std::vector<std::unique_ptr<RankModel>> ranks;
  for (int r = 0; r < count; ++r)
    ranks.push_back(std::make_unique<RankModel>(f.config, f.weights, NumericsModes{}, Sharding{r, count}, t));
  RunRanks(exchange,
           [&](const ExecContext& ctx, int r) { ranks[static_cast<size_t>(r)]->Append(ctx, f.tokens, 0, cut); });
  const SequenceCache& last = *ranks.back()->cache;
  const KvLayout& layout = ranks[0]->model.kv_layout;
  for (auto& rank : ranks) {
    if (rank == ranks.back()) break;
    std::memcpy(rank->cache->fixed(), last.fixed(), static_cast<size_t>(layout.fixed_bytes));
    for (size_t p = 0; p < last.pages().size(); ++p)
      std::memcpy(rank->cache->pages()[p], last.pages()[p], static_cast<size_t>(layout.page_bytes));
  }
  RunRanks(exchange,
           [&](const ExecContext& ctx, int r) { ranks[static_cast<size_t>(r)]->Append(ctx, f.tokens, cut, t); });
  for (const auto& rank : ranks) EXPECT_EQ(rank->logits, want);
}

// One rank of one is the plain model.
TEST(Ranks, OneRankKeepsItsBits) {
  DSV4_FIXTURE_OR_SKIP(dir, "mini-bf16");
  const FixtureModel f(dir);
  const auto one = f.Run(1, Chunks(37, f.num_tokens()), kExact);
  RankModel plain(f.config, f.weights, kExact, {}, f.num_tokens());
  int64_t begin = 0;
  for (const int64_t end : Chunks(37, f.num_tokens())) plain.Append({}, f.tokens, std::exchange(begin, end), end);
  EXPECT_EQ(one[0]->logits, plain.logits);
}

// The references of all ops, and threads within ranks, change only the last bits or nothing.
TEST(Ranks, ReferenceOpsAndThreadsAgree) {
  DSV4_FIXTURE_OR_SKIP(dir, "mini-bf16");
  const FixtureModel f(dir);
  const std::vector<int64_t> ends = Chunks(f.num_tokens(), f.num_tokens());
  const std::vector<float> want = f.Run(2, ends, kExact)[0]->logits;
  const std::vector<float> by_reference = f.Run(2, ends, kExact, {.reference_ops = true})[0]->logits;
  ASSERT_EQ(by_reference.size(), want.size());
  float largest = 0;
  for (size_t i = 0; i < want.size(); ++i) largest = std::max(largest, std::fabs(want[i] - by_reference[i]));
  EXPECT_LE(largest, 2e-3f);
}

TEST(Ranks, ARankThatStopsIsNamedWithItsPlace) {
  DSV4_FIXTURE_OR_SKIP(dir, "mini-bf16");
  const FixtureModel f(dir);
  Exchange exchange(2, {.timeout_s = 0.3, .site_name = [&](int64_t site) { return ExchangeName(f.config, site); }});
  std::vector<std::unique_ptr<RankModel>> ranks;
  for (int r = 0; r < 2; ++r)
    ranks.push_back(std::make_unique<RankModel>(f.config, f.weights, kExact, Sharding{r, 2}, 8));
  RunRanks(exchange, [&](const ExecContext& ctx, int r) {
    if (r == 0) ranks[0]->Append(ctx, f.tokens, 0, 8);
  });
  EXPECT_THAT(exchange.status().message(),
              testing::HasSubstr("rank 1 sent nothing to rank 0 for 0.3 s (layer 0, attention)"));
}

}  // namespace
}  // namespace dsv4::test
