#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "server/schedule/scheduler_fixture.h"

namespace dsv4::server {
namespace {

TEST_F(SchedulerTest, StoppingEndsEverything) {
  Start({.max_running = 1});
  const auto client = Submit({{100}, {200}}, 90000);
  WaitFor([&] { return !client->tokens[0].empty(); });
  scheduler_->Stop();
  Wait(client);
  EXPECT_EQ(client->finish, (std::vector{FinishReason::kError, FinishReason::kError}));
  EXPECT_EQ(engine_.live_sessions, 0);
  EXPECT_EQ(scheduler_->Submit(Make({{1}}, 1)->job).code(), StatusCode::kResourceExhausted);
}

TEST_F(SchedulerTest, StoppingTellsThoseThatCameDuringTheLastStep) {
  std::atomic<bool> open{false}, inside{false};
  engine_.before_step = [&] {
    inside = true;
    while (!open) std::this_thread::yield();
  };
  Start();
  const auto first = Submit({{100}}, 90000);
  while (!inside) std::this_thread::yield();
  const auto last = Submit({{200}}, 10);
  std::thread stop([&] { scheduler_->Stop(); });
  // Stop is called on another thread and waits for the step. Afterwards new requests are refused.
  std::vector<std::shared_ptr<Client>> others;
  for (Status status; status.message() != "the server is shutting down";) {
    others.push_back(Make({{300}}, 10));
    status = scheduler_->Submit(others.back()->job);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  open = true;
  stop.join();
  Wait(first);
  Wait(last);
  EXPECT_EQ(first->finish, (std::vector{FinishReason::kError}));
  EXPECT_EQ(last->finish, (std::vector{FinishReason::kError}));
}

}  // namespace
}  // namespace dsv4::server
