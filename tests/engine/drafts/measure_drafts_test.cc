// The measurements of an engine with drafts before its first text. On GPUs they run when the model is loaded.
#include <string>

#include "engine/drafts/model_drafts_fixture.h"
#include "engine/engine_impl.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

class MeasureDraftsTest : public ::testing::TestWithParam<Speculate> {
 protected:
  std::unique_ptr<Engine> Load(float threshold) {
    return LoadOrFail({.model_dir = DSV4_SOURCE_DIR "/models/nano",
                       .num_threads = 1,
                       .drafts = {.speculate = GetParam(), .tokens = 3, .threshold = threshold}});
  }
};
INSTANTIATE_TEST_SUITE_P(Drafters, MeasureDraftsTest,
                         testing::Values(Speculate::kLookup, Speculate::kMtp, Speculate::kDspark),
                         [](const auto& instance) {
                           return std::string(kSpeculateNames[static_cast<size_t>(instance.param)]);
                         });

TEST_P(MeasureDraftsTest, KnowsWhatRoundsTake) {
  const auto engine = Load(-1);
  ASSERT_NE(engine, nullptr);
  auto& impl = dynamic_cast<EngineImpl&>(*engine);
  EXPECT_FALSE(impl.drafting().policy.Wants(1));  // nothing is known
  ASSERT_TRUE(impl.MeasureDrafts().ok());
  EXPECT_TRUE(impl.drafting().policy.Wants(1));
  for (int64_t rows = 1; rows <= 4; ++rows) EXPECT_GT(impl.drafting().policy.Expect(rows, 1), 0) << rows;
  EXPECT_EQ(engine->draft_counts().steps, 0);
  EXPECT_EQ(engine->kv_bytes(), 0);
}

// The measured texts have no effect: the drafts afterwards are the same as without them.
TEST_P(MeasureDraftsTest, LeavesNoTrace) {
  const std::vector<TokenId> prompt = {0, 4052, 840, 341, 223, 20, 25, 582, 223, 22, 26, 33, 4053, 4070};
  std::vector<Generated> runs;
  for (const bool measures : {false, true}) {
    const auto engine = Load(0.5f);
    ASSERT_NE(engine, nullptr);
    if (measures) {
      ASSERT_TRUE(dynamic_cast<EngineImpl&>(*engine).MeasureDrafts().ok());
    }
    runs.push_back(Generate(*engine, prompt, 40, {.temperature = 0}));
  }
  EXPECT_EQ(runs[1].ids, runs[0].ids);
  EXPECT_EQ(runs[1].verified, runs[0].verified);
}

// If the session does not fit, that is no error, and nothing remains of the attempt.
TEST(MeasureDrafts, IsLeftOutWhereTheContextIsTooShort) {
  const auto engine = LoadOrFail({.model_dir = DSV4_SOURCE_DIR "/models/nano",
                                  .num_threads = 1,
                                  .max_context = 3,
                                  .drafts = {.speculate = Speculate::kMtp}});
  ASSERT_NE(engine, nullptr);
  auto& impl = dynamic_cast<EngineImpl&>(*engine);
  EXPECT_TRUE(impl.MeasureDrafts().ok());
  EXPECT_FALSE(impl.drafting().policy.Wants(1));
  EXPECT_NE(impl.drafting().drafter, nullptr);
}

}  // namespace
}  // namespace dsv4::test
