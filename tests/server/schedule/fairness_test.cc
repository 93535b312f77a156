// A request of many sequences leaves places, prompt tokens and KV memory to other requests.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/schedule/scheduler_fixture.h"

namespace dsv4::server {
namespace {

class Fairness : public SchedulerTest {
 protected:
  // Submits both requests before the engine's first step ends. Returns the steps until `other` has ended.
  size_t StepsOfOther(const std::shared_ptr<Client>& large, const std::shared_ptr<Client>& other) {
    size_t steps = 0;
    other->job->on_output = [&, inner = other->job->on_output](std::vector<StepOutput>& outputs) {
      inner(outputs);
      const std::lock_guard lock(engine_.mutex);
      steps = engine_.step_tokens.size();
    };
    EXPECT_TRUE(scheduler_->Submit(large->job).ok());
    EXPECT_TRUE(scheduler_->Submit(other->job).ok());
    open_ = true;
    Wait(other);
    scheduler_->Cancel(large->job);
    Wait(large);
    return steps;
  }
  void StartClosed(const SchedulerOptions& options) {
    engine_.before_step = [this] {
      while (!open_) std::this_thread::yield();
    };
    Start(options);
  }
  static std::vector<Ids> Prompts(size_t count, size_t length) {
    std::vector<Ids> prompts;
    for (size_t i = 0; i < count; ++i) prompts.push_back(Ids(length, static_cast<TokenId>(200 + i)));
    return prompts;
  }

  std::atomic<bool> open_{false};
};

TEST_F(Fairness, PlacesOfTheBatch) {
  StartClosed({.max_running = 8, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  const auto large = Make(Prompts(20, 5), 50000), other = Make({Counting(100, 5)}, 3);
  EXPECT_LT(StepsOfOther(large, other), 200u);
}

TEST_F(Fairness, TokensOfPrompts) {
  StartClosed({.prefill_chunk = 64, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  const auto large = Make(Prompts(40, 2000), 1), other = Make({Counting(100, 40)}, 1);
  EXPECT_LT(StepsOfOther(large, other), 20u);
}

// Log-probabilities of prompts need all rows of a step. There are few of them.
TEST_F(Fairness, RowsOfPrompts) {
  StartClosed({.prefill_chunk = 512, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  GenerationParams echo;
  echo.prompt_logprobs = 1;
  const auto large = Make(Prompts(64, 2000), 1, echo), plain = Make({Counting(100, 40)}, 1),
             other = Make({Counting(300, 40)}, 1, echo);
  EXPECT_TRUE(scheduler_->Submit(plain->job).ok());
  EXPECT_LT(StepsOfOther(large, other), 40u);
  Wait(plain);
}

TEST_F(Fairness, KvMemory) {
  StartClosed({.max_gap_s = 0, .kv_budget_bytes = 10 * FakeBytes(1000), .prefix_cache = {.enabled = false}});
  const auto large = Make(Prompts(20, 990), 2000), other = Make({Counting(100, 20)}, 1);
  EXPECT_LT(StepsOfOther(large, other), 100u);
}

// Without other requests it has all places but one in eight.
TEST_F(Fairness, MostPlacesAreUsed) {
  StartClosed({.max_running = 16, .prefill_chunk = 4096, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  const auto large = Make(Prompts(30, 5), 100);
  EXPECT_TRUE(scheduler_->Submit(large->job).ok());
  open_ = true;
  Wait(large);
  const std::lock_guard lock(engine_.mutex);
  EXPECT_EQ(*std::max_element(engine_.step_items.begin(), engine_.step_items.end()), 14u);
}

// Many requests of one tenant do not hold up a request of another: neither in the queue nor in the batch.
TEST_F(Fairness, PlacesOfTenants) {
  StartClosed({.max_running = 8, .several_tenants = true, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  std::vector<std::shared_ptr<Client>> many;
  for (TokenId i = 0; i < 30; ++i) {
    many.push_back(Make({Ids(5, 400 + i)}, 50000));
    many.back()->job->tenant = "a";
  }
  const auto last = many.back(), other = Make({Counting(100, 5)}, 3);
  many.pop_back();
  other->job->tenant = "b";
  for (const auto& one : many) EXPECT_TRUE(scheduler_->Submit(one->job).ok());
  EXPECT_LT(StepsOfOther(last, other), 200u);
  for (const auto& one : many) scheduler_->Cancel(one->job);
  for (const auto& one : many) Wait(one);
}

TEST_F(Fairness, PromptsOfTenants) {
  StartClosed({.prefill_chunk = 64, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  std::vector<std::shared_ptr<Client>> many;
  for (TokenId i = 0; i < 40; ++i) {
    many.push_back(Make({Ids(2000, 400 + i)}, 1));
    many.back()->job->tenant = "a";
  }
  const auto last = many.back(), other = Make({Counting(100, 40)}, 1);
  many.pop_back();
  other->job->tenant = "b";
  for (const auto& one : many) EXPECT_TRUE(scheduler_->Submit(one->job).ok());
  EXPECT_LT(StepsOfOther(last, other), 20u);
  for (const auto& one : many) scheduler_->Cancel(one->job);
  for (const auto& one : many) Wait(one);
}

// Requests of one sequence keep their order, and each gets a place before a second sequence of another.
TEST_F(Fairness, OrderOfArrival) {
  StartClosed({.max_running = 2, .max_gap_s = 0, .prefix_cache = {.enabled = false}});
  const auto large = Make(Prompts(6, 5), 20);
  EXPECT_TRUE(scheduler_->Submit(large->job).ok());
  std::vector<std::shared_ptr<Client>> others;
  for (TokenId i = 0; i < 4; ++i) others.push_back(Submit({Ids(5, 400 + i)}, 20));
  open_ = true;
  for (const auto& other : others) Wait(other);
  Wait(large);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(others[static_cast<size_t>(i)]->place, i + 1);
  EXPECT_EQ(large->place, 5);
}

}  // namespace
}  // namespace dsv4::server
