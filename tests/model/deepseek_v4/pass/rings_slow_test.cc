// Every width, number of kept tokens and alignment; then many random ones.
#include <map>

#include "model/deepseek_v4/pass/timeline.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

class EveryAlignment : public testing::TestWithParam<const char*> {};

std::string NameOfFixture(const testing::TestParamInfo<const char*>& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, EveryAlignment, testing::Values("flash-nvfp4"), NameOfFixture);
INSTANTIATE_TEST_SUITE_P(Campaign, EveryAlignment,
                         testing::Values("mini-bf16", "pro-official", "flash-all-nvfp4", "flash-8-groups"),
                         NameOfFixture);

// From positions where rows and windows begin and rings wrap: the state of the kept tokens equals that of a timeline
// without the removed ones.
TEST_P(EveryAlignment, StateAfterTakingBackIsThatOfTheTokensThatStay) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const deepseek_v4::Model model = ModelWithSpareSlots(dir, kSpareSlots);
  KnownRun run{.tokens = SomeTokens(300, 5, model.config.vocab_size), .rows = {}, .first = 119};
  Timeline alone(model);
  (void)alone.Append(std::span(run.tokens).first(119));
  std::map<int64_t, std::vector<uint8_t>> visible;
  std::vector<Timeline> starts;
  for (int64_t p = 119; p < 274; ++p) {
    visible[p] = alone.Visible();
    if (p < 137 || (p > 246 && p < 265)) starts.push_back(alone.Fork());
    run.rows.push_back(alone.Append(std::span(run.tokens).subspan(static_cast<size_t>(p), 1)));
  }
  visible[274] = alone.Visible();
  for (Timeline& start : starts) {
    for (int64_t width = 1; width <= 8; ++width) {
      for (int64_t keep = 1; keep <= width; ++keep) {
        Timeline timeline = start.Fork();
        ASSERT_TRUE(StepAndTakeBack(timeline, run, width, keep)) << start.size() << ": " << keep << " of " << width;
        ASSERT_TRUE(timeline.Visible() == visible[timeline.size()]) << start.size() << ": " << keep << " of " << width;
        // The next token reads the overwritten slots, if any token does.
        ASSERT_TRUE(StepAndTakeBack(timeline, run, 1, 1)) << start.size() << ": " << keep << " of " << width;
      }
    }
  }
}

TEST_P(EveryAlignment, RandomStepsForLong) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const deepseek_v4::Model model = ModelWithSpareSlots(dir, kSpareSlots);
  constexpr int64_t kTokens = 900;
  KnownRun run{.tokens = SomeTokens(kTokens + 8, 6, model.config.vocab_size), .rows = {}, .first = 0};
  Timeline alone(model);
  for (int64_t p = 0; p < kTokens; ++p) {
    run.rows.push_back(alone.Append(std::span(run.tokens).subspan(static_cast<size_t>(p), 1)));
  }
  const std::vector<uint8_t> visible = alone.Visible();
  Random random(9);
  for (int64_t steps = 0; steps < 2000;) {
    Timeline timeline(model);
    while (timeline.size() < kTokens) {
      const int64_t width = std::min<int64_t>(kTokens - timeline.size(), 1 + static_cast<int64_t>(random.Bits() % 8));
      const int64_t keep = 1 + static_cast<int64_t>(random.Bits() % static_cast<uint64_t>(width));
      ASSERT_TRUE(StepAndTakeBack(timeline, run, width, keep)) << timeline.size() << ": " << keep << " of " << width;
      ++steps;
    }
    ASSERT_TRUE(timeline.Visible() == visible);
  }
}

}  // namespace
}  // namespace dsv4::test
