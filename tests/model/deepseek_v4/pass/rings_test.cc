// Removed rows have no effect: rings are long enough for the slots that a step overwrites.
#include "model/deepseek_v4/pass/timeline.h"

namespace dsv4::test {
namespace {

constexpr int64_t kPrompt = 117, kEnd = 275;  // past the first row of ratio 128, two wraps of the window

// The run token by token; `prompt` is its beginning.
KnownRun TokenByToken(const deepseek_v4::Model& model, Timeline* prompt) {
  KnownRun run{.tokens = SomeTokens(kEnd + 8, 3, model.config.vocab_size), .rows = {}, .first = kPrompt};
  (void)prompt->Append(std::span(run.tokens).first(kPrompt));
  Timeline alone = prompt->Fork();
  for (int64_t p = kPrompt; p < kEnd; ++p) {
    run.rows.push_back(alone.Append(std::span(run.tokens).subspan(static_cast<size_t>(p), 1)));
  }
  return run;
}

// Steps of `width` tokens of which 1 to `width` are kept. Returns how many have other bits than the run.
int64_t StepsThatDiffer(Timeline timeline, const KnownRun& run, int64_t width) {
  int64_t differ = 0;
  for (int64_t i = 0; timeline.size() + width <= kEnd; ++i) {
    differ += StepAndTakeBack(timeline, run, width, 1 + i * 5 % width) ? 0 : 1;
  }
  return differ;
}

class Rings : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Rings, testing::Values("flash-nvfp4", "pro-official-cut"), [](const auto& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(Rings, RowsTakenBackChangeNothing) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const deepseek_v4::Model model = ModelWithSpareSlots(dir, kSpareSlots);
  Timeline prompt(model);
  const KnownRun run = TokenByToken(model, &prompt);
  for (const int64_t width : {3, 8}) EXPECT_EQ(StepsThatDiffer(prompt.Fork(), run, width), 0) << width;
}

// Without spare slots, rings allow one token more than a step keeps (such a step writes after it reads).
TEST_P(Rings, WithoutSpareSlotsTheyWouldNot) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const deepseek_v4::Model model = ModelWithSpareSlots(dir, 0);
  Timeline prompt(model);
  const KnownRun run = TokenByToken(model, &prompt);
  EXPECT_EQ(StepsThatDiffer(prompt.Fork(), run, 2), 0);
  EXPECT_GT(StepsThatDiffer(prompt.Fork(), run, 3), 0);
}

}  // namespace
}  // namespace dsv4::test
