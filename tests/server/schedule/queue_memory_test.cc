// Memory of sequences that wait for a place in the batch, and of logits rows that have been used.
#include <malloc.h>

#include <string>
#include <vector>

#include "server/schedule/scheduler_fixture.h"

namespace dsv4::server {

namespace {

// Allocated bytes; 0 if the allocator has no counters, as under a sanitizer.
size_t HeapNow() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// The sequences of one request share the request's parameters.
TEST_F(SchedulerTest, SequencesThatWaitHoldLittle) {
  constexpr size_t kWaiting = 500;
  Start({.max_running = 1, .max_waiting = 1000});
  const auto first = Submit({Counting(100, 10)}, 1 << 30);
  WaitFor([&] { return !first->tokens[0].empty(); });
  auto client = Make({Counting(100, 3000)}, 5, {.stops = std::vector<std::string>(64, std::string(250, 'x'))});
  auto& bias = client->job->sequences[0].params->sampling.logit_bias;
  for (TokenId id = 0; id < 3000; ++id) bias.emplace_back(id, 1.0f);
  client->job->sequences.resize(kWaiting, client->job->sequences[0]);
  client->tokens.resize(kWaiting);
  client->finish.resize(kWaiting);
  client->counts.resize(kWaiting);
  client->open = kWaiting;
  const size_t before = HeapNow();
  ASSERT_TRUE(scheduler_->Submit(client->job).ok());
  const size_t after = HeapNow();
  EXPECT_LT(after < before ? 0 : (after - before) / kWaiting, size_t{4} << 10);
  scheduler_->Cancel(client->job);
  scheduler_->Cancel(first->job);
  Wait(client);
  WaitIdle();
}

TEST_F(SchedulerTest, RowsOfPromptsAreLetGoOfWhenTheyHaveBeenRead) {
  constexpr size_t kPrompts = 16, kLength = 100;
  Start({.max_running = kPrompts + 4});  // one request gets seven eighths of the places
  const size_t before = HeapNow();
  std::vector<Ids> prompts;
  for (size_t i = 0; i < kPrompts; ++i) prompts.push_back(Counting(static_cast<TokenId>(100 + i), kLength));
  auto client = Submit(prompts, 1 << 30, {.prompt_logprobs = 0});
  WaitFor([&] {
    for (const Ids& tokens : client->tokens) {
      if (tokens.size() < 3) return false;
    }
    return true;
  });
  scheduler_->SetPaused(client->job, true);
  const size_t row = static_cast<size_t>(engine_.info().vocab_size) * sizeof(float), after = HeapNow();
  // Samplers and rows of one step: about ten rows each. The rows of a prompt are 100.
  EXPECT_LT(after < before ? 0 : (after - before) / kPrompts, 40 * row);
  scheduler_->SetPaused(client->job, false);
  scheduler_->Cancel(client->job);
  Wait(client);
  WaitIdle();
}

}  // namespace

}  // namespace dsv4::server
