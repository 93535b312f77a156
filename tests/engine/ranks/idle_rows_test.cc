// Decode steps with padding rows, with the CPU as the device that runs them.
#include "engine/ranks/idle_rows.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/decode/decode_loop.h"
#include "engine/engine_impl.h"
#include "support/sessions.h"
#include "support/visible_state.h"

namespace dsv4::test {
namespace {

TEST(IdleRows, StepsHaveFewSizes) {
  std::set<int64_t> sizes;
  for (int64_t rows = 1; rows <= DecodeSteps::kMaxSequences; ++rows) {
    const int64_t size = StepRows(rows);
    EXPECT_GE(size, rows);
    EXPECT_LT(size, rows + (rows <= 64 ? 4 : 8));
    EXPECT_EQ(StepRows(size), size);
    EXPECT_TRUE(rows > 8 || size == rows) << "small steps have no idle rows";
    sizes.insert(size);
  }
  EXPECT_LE(*sizes.rbegin(), DecodeSteps::kMaxSequences);
  EXPECT_EQ(sizes.size(), 8u + 14 + 8);
}

// Steps that verify drafts: all their padding rows belong to one sequence.
TEST(IdleRows, FillUpStepsOfSeveralRowsEach) {
  const auto device = std::move(Device::Open("cpu")).value();
  IdleRows idle(*device, 64);
  idle.Reserve();
  Step step;
  for (int64_t row = 0; row < 13; ++row) {
    step.tokens.push_back(7), step.positions.push_back(90 + row), step.logit_rows.push_back(static_cast<int32_t>(row));
    step.sequence_of.push_back(row < 5 ? 0 : 1);
  }
  step.sequences = {{.start = 90, .begin = 0, .end = 5}, {.start = 95, .begin = 5, .end = 13}};
  const Step& filled = idle.Fill(step);
  const auto [sequences, rows] = IdleRows::SizeOf(step);
  EXPECT_EQ(sequences, 3);
  EXPECT_EQ(rows, 16);
  ASSERT_EQ(filled.num_tokens(), rows);
  ASSERT_EQ(static_cast<int64_t>(filled.sequences.size()), sequences);
  EXPECT_EQ(filled.sequences.back().begin, 13);
  EXPECT_EQ(filled.sequences.back().end, 16);
  EXPECT_EQ(filled.most_each(), 8);
  for (size_t row = 13; row < 16; ++row) {
    EXPECT_EQ(filled.sequence_of[row], 2);
    EXPECT_EQ(filled.positions[row], 0);
  }
}

struct Decoded {
  std::vector<std::vector<TokenId>> drawn;
  std::vector<std::vector<uint8_t>> kv;  // of every sequence and rank
  ExpertUse use;
};

class IdleRowsOfSteps : public ::testing::TestWithParam<const char*> {
 protected:
  // Decodes `count` sequences together, so long that several compressed rows are made while there are padding rows.
  Decoded Run(int64_t count, bool on_device) {
    const auto engine = LoadOrFail({.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano",
                                    .device = GetParam(),
                                    .num_threads = 1,
                                    .count_experts = true});
    Decoded out;
    if (engine == nullptr) return out;
    auto& impl = dynamic_cast<EngineImpl&>(*engine);
    const int64_t v = engine->info().vocab_size;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<DecodeItem> items;
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<TokenId> prompt = SomeTokens(3 + 17 * i, static_cast<uint64_t>(i) + 1, v);
      sessions.push_back(std::move(engine->NewSession()).value());
      EXPECT_TRUE(sessions.back()->Append(prompt, LogitRows::kNone, nullptr).ok());
      samplers.push_back(std::move(Sampler::Create({.temperature = 0.9f, .seed = 7}, v)).value());
      items.push_back(
          {.session = sessions.back().get(), .sampler = samplers.back().get(), .first = prompt[0], .max_tokens = 10});
    }
    out.drawn.resize(items.size());
    const TokenFn fn = [&](size_t item, const SampledToken& token) {
      out.drawn[item].push_back(token.id);
      return true;
    };
    RankDecodeSteps steps(impl.ranks(), v);
    std::vector<LiveItem> live = LiveItemsOf(items);
    EXPECT_TRUE(
        (on_device ? DecodeLoop(steps, engine->info(), items, fn, live).Run() : engine->Decode(items, fn)).ok());
    for (const auto& session : sessions) {
      RankCaches& caches = static_cast<SessionImpl&>(*session).caches();
      for (int r = 0; r < caches.count(); ++r) {
        out.kv.push_back(VisibleState(impl.runner().model().kv_layout(), caches.of(r),
                                      static_cast<int64_t>(session->tokens().size())));
      }
    }
    out.use = std::move(engine->expert_use()).value();
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, IdleRowsOfSteps, ::testing::Values("cpu", "cpu*2"),
                         [](const auto& instance) { return std::string(instance.param) == "cpu" ? "One" : "Two"; });

TEST_P(IdleRowsOfSteps, ChangeNoBitOfOthersAndAreNotCounted) {
  for (const int64_t count : {9, 13}) {
    const Decoded want = Run(count, /*on_device=*/false), got = Run(count, /*on_device=*/true);
    EXPECT_EQ(got.drawn, want.drawn) << count;
    EXPECT_EQ(got.kv, want.kv) << count;
    EXPECT_EQ(got.use.counts.chosen, want.use.counts.chosen) << count;
  }
}

}  // namespace
}  // namespace dsv4::test
