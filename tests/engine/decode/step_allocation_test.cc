// A decode step on the CPU allocates nothing, on any rank: every vector and buffer that it uses has grown before.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/sampling.h"
#include "support/count_allocations.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

// Sequences of 300 tokens: all layer kinds of the nano shape have rows to read, and the pages have space for more
// tokens.
struct AllocatingRanks {
  const char* device;
  bool rank_invariant;
  std::vector<int> threads;
};
class StepAllocation : public ::testing::TestWithParam<AllocatingRanks> {
 protected:
  static constexpr int64_t kContext = 300;

  void Load(int threads, int64_t batch) {
    EngineOptions options;
    options.synthetic.shape = "nano";
    options.num_threads = threads;
    options.device = GetParam().device;
    options.ranks.invariant = GetParam().rank_invariant;
    engine_ = LoadOrFail(options);
    ASSERT_NE(engine_, nullptr);
    for (int64_t i = 0; i < batch; ++i) {
      sessions_.push_back(std::move(engine_->NewSession()).value());
      const std::vector<TokenId> ids = SomeTokens(kContext, static_cast<uint64_t>(i), engine_->info().vocab_size);
      ASSERT_TRUE(sessions_.back()->Append(ids, LogitRows::kNone, nullptr).ok());
    }
  }

  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, StepAllocation,
                         testing::Values(AllocatingRanks{"cpu", false, {1, 3}}, AllocatingRanks{"cpu*2", false, {2}},
                                         AllocatingRanks{"cpu", true, {2}}),
                         [](const auto& instance) { return "case_" + std::to_string(instance.index); });

TEST_P(StepAllocation, DecodeStepsAllocateNothing) {
  for (const int threads : GetParam().threads) {
    for (const int64_t batch : {1, 5}) {
      sessions_.clear();
      Load(threads, batch);
      std::vector<std::unique_ptr<Sampler>> samplers;
      std::vector<DecodeItem> items;
      for (int64_t i = 0; i < batch; ++i) {
        SamplingParams params;
        params.seed = static_cast<uint64_t>(i);
        params.top_p = i % 2 == 0 ? 1.0f : 0.9f;
        params.top_k = i % 3 == 2 ? 40 : 0;
        samplers.push_back(std::move(Sampler::Create(params, engine_->info().vocab_size)).value());
        items.push_back({.session = sessions_[static_cast<size_t>(i)].get(),
                         .sampler = samplers.back().get(),
                         .first = 5,
                         .max_tokens = 48});
      }
      constexpr int64_t kWarmSteps = 16;
      int64_t step = 0, before = 0, after = 0;
      ASSERT_TRUE(engine_
                      ->Decode(items,
                               [&](size_t item, const SampledToken&) {
                                 if (item != items.size() - 1) return true;
                                 if (++step == kWarmSteps) before = num_allocations.load();
                                 after = num_allocations.load();
                                 return true;
                               })
                      .ok());
      EXPECT_EQ(step, 48);
      EXPECT_EQ(after - before, 0) << threads << " threads, batch " << batch;
    }
  }
}

TEST_P(StepAllocation, StepsOfTheServerAllocateNothing) {
  Load(2, 4);
  std::vector<std::vector<float>> logits(sessions_.size());
  std::vector<TokenId> next(sessions_.size(), 7);
  std::vector<StepItem> items;
  for (size_t i = 0; i < sessions_.size(); ++i)
    items.push_back({.session = sessions_[i].get(), .tokens = {&next[i], 1}, .logits = &logits[i]});
  int64_t before = 0;
  for (int step = 0; step < 40; ++step) {
    if (step == 16) before = num_allocations.load();
    ASSERT_TRUE(engine_->Step(items).ok());
  }
  EXPECT_EQ(num_allocations.load() - before, 0);
}

}  // namespace
}  // namespace dsv4::test
