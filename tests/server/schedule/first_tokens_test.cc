// First-token times of prompts that arrive together.
#include <algorithm>
#include <numeric>

#include "server/schedule/scheduler_fixture.h"

namespace dsv4::server {
namespace {

// Returns the tokens that the engine has processed at each prompt's first token, as a fraction of all prompts, sorted.
class FirstTokens : public SchedulerTest {
 protected:
  std::vector<double> Read(size_t prompts, size_t length, int64_t tokens) {
    std::vector<double> times;
    std::vector<Ids> all;
    for (size_t i = 0; i < prompts; ++i) all.push_back(Ids(length, static_cast<TokenId>(200 + i)));
    const auto client = Make(std::move(all), tokens);
    client->job->on_output = [&, inner = client->job->on_output](std::vector<StepOutput>& outputs) {
      std::vector<bool> had;
      for (const StepOutput& o : outputs) had.push_back(!client->tokens[static_cast<size_t>(o.index)].empty());
      inner(outputs);
      const std::lock_guard lock(engine_.mutex);
      const auto read = std::accumulate(engine_.step_tokens.begin(), engine_.step_tokens.end(), 0.0);
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!had[i] && !outputs[i].tokens.empty()) times.push_back(read / static_cast<double>(prompts * length));
      }
    };
    EXPECT_TRUE(scheduler_->Submit(client->job).ok());
    Wait(client);
    WaitIdle();
    EXPECT_EQ(times.size(), prompts);
    std::sort(times.begin(), times.end());
    return times;
  }
};

// A step of 4,096 tokens holds eight prompts, whatever else runs. The 32nd ends with the fourth step, the 33rd with the
// fifth.
TEST_F(FirstTokens, DoNotWaitForThePromptsBehindThem) {
  // One request gets seven eighths of the places.
  Start({.max_running = 74, .prefill_chunk = 4096, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  const std::vector<double> times = Read(64, 512, 20);
  EXPECT_LE(times[0], 0.13);
  EXPECT_LE(times[31], 0.52);
  EXPECT_LE(times[32], 0.64);
  EXPECT_LE(times[63], 1.02);
  const std::lock_guard lock(engine_.mutex);
  EXPECT_EQ(std::count_if(engine_.step_tokens.begin(), engine_.step_tokens.end(), [](int64_t n) { return n > 64; }), 8);
}

// Prompts that need several steps each do not all end in the last step.
TEST_F(FirstTokens, OfLongPromptsComeOneAfterAnother) {
  Start({.prefill_chunk = 4096, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  const std::vector<double> times = Read(8, 4000, 20);
  EXPECT_LE(times[0], 0.3);
  EXPECT_LE(times[3], 0.8);
}

}  // namespace
}  // namespace dsv4::server
