// The scheduler with a device that fails.
#include "server/schedule/scheduler_fixture.h"
#include "server/schedule/sequence.h"

namespace dsv4::server {
namespace {

using SchedulerDevice = SchedulerTest;

TEST_F(SchedulerDevice, ADeviceThatFailsIsOpenedAnew) {
  std::vector<std::string> events;
  std::atomic<bool> failed_meanwhile{false};
  engine_.before_restart = [&] { failed_meanwhile = scheduler_->device_failed(); };
  Start({.on_device = [&](const char* event, const std::string& what) {
    events.push_back(std::string(event) + ": " + what);
  }});
  Wait(Submit({Counting(300, 100)}, 5));  // leaves snapshots
  const auto stream = Submit({{100}, {200}}, 90000);
  WaitFor([&] { return stream->tokens[0].size() > 3 && stream->tokens[1].size() > 3; });
  engine_.broken = true;
  Wait(stream);
  EXPECT_EQ(stream->finish, (std::vector{FinishReason::kError, FinishReason::kError}));
  EXPECT_EQ(stream->error.message(), "the fake device failed");
  const auto after = Submit({{100}}, 3);
  Wait(after);
  EXPECT_EQ(after->tokens[0], Counting(101, 3));
  EXPECT_TRUE(failed_meanwhile);
  EXPECT_FALSE(scheduler_->device_failed());
  EXPECT_EQ(events, (std::vector<std::string>{"device-failed: the fake device failed", "device-restarted: "}));
}

TEST_F(SchedulerDevice, ADeviceThatCannotBeOpenedIsTheEnd) {
  std::atomic<int> fatal{0};
  engine_.restart_status = Unsupported("no such GPU");
  Start({.on_fatal = [&](const Status& status) { fatal += status.message() == "no such GPU" ? 1 : 100; }});
  const auto stream = Submit({{100}}, 90000);
  WaitFor([&] { return stream->tokens[0].size() > 3; });
  engine_.broken = true;
  Wait(stream);
  for (int i = 0; i < 10000 && fatal == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(fatal, 1);
  EXPECT_TRUE(scheduler_->device_failed());
}

TEST_F(SchedulerDevice, ADeviceThatIsNotToBeOpenedAnewIsTheEndAtOnce) {
  std::atomic<int> fatal{0}, restarts{0};
  engine_.before_restart = [&] { ++restarts; };
  Start({.restart_device = false, .on_fatal = [&](const Status&) { ++fatal; }});
  const auto stream = Submit({{100}}, 90000);
  WaitFor([&] { return stream->tokens[0].size() > 3; });
  engine_.broken = true;
  Wait(stream);
  for (int i = 0; i < 10000 && fatal == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(fatal, 1);
  EXPECT_EQ(restarts, 0);
}

TEST_F(SchedulerDevice, StoppingDoesNotWaitForADeviceThatIsOpenedAnew) {
  std::atomic<int> fatal{0}, pieces{0};
  engine_.restart_pieces = int64_t{1} << 40;
  engine_.before_piece = [&] {
    ++pieces;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Start({.on_fatal = [&](const Status&) { ++fatal; }});
  const auto stream = Submit({{100}}, 90000);
  WaitFor([&] { return stream->tokens[0].size() > 3; });
  engine_.broken = true;
  Wait(stream);
  for (int i = 0; i < 10000 && pieces == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(scheduler_->activity(), Scheduler::Activity::kRestart);
  scheduler_->Stop();
  EXPECT_EQ(scheduler_->activity(), Scheduler::Activity::kNone);
  EXPECT_EQ(fatal, 0);
  EXPECT_TRUE(scheduler_->device_failed());
}

TEST_F(SchedulerDevice, ADeviceThatFailsWhileTheServerDrainsIsNotOpenedAnew) {
  std::atomic<int> fatal{0}, restarts{0};
  engine_.before_restart = [&] { ++restarts; };
  Start({.on_fatal = [&](const Status&) { ++fatal; }});
  const auto stream = Submit({{100}}, 90000);
  WaitFor([&] { return stream->tokens[0].size() > 3; });
  scheduler_->Drain();
  engine_.broken = true;
  Wait(stream);
  EXPECT_EQ(stream->error.message(), "the fake device failed");
  const auto late = Submit({{100}}, 5);  // its request was being read when the signal came
  Wait(late);
  EXPECT_EQ(late->error.message(), "the fake device failed");
  EXPECT_EQ(restarts, 0);
  EXPECT_EQ(fatal, 0);
}

TEST_F(SchedulerDevice, LoadingThatHangsIsSeenAndLoadingThatGoesOnIsNot) {
  std::atomic<int64_t> opened_ns{0};
  engine_.restart_pieces = 3;
  std::atomic<int> pieces{0};
  engine_.before_piece = [&] {
    if (++pieces == 2) {
      for (int i = 0; i < 60000 && opened_ns == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (pieces < 3) return;
    const double stuck = scheduler_->SecondsStuck();  // since the piece before, which ended after opened_ns
    EXPECT_LE(stuck, static_cast<double>(NowNs() - opened_ns) * 1e-9);
  };
  Start();
  const auto stream = Submit({{100}}, 90000);
  WaitFor([&] { return stream->tokens[0].size() > 3; });
  engine_.broken = true;
  for (int i = 0; i < 60000 && scheduler_->SecondsStuck() < 0.2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(scheduler_->SecondsStuck(), 0.2);
  opened_ns = NowNs();
  Wait(Submit({{100}}, 3));
  EXPECT_EQ(pieces, 3);
}

TEST_F(SchedulerDevice, FailuresAreCounted) {
  Start();
  EXPECT_EQ(Metric("dsv4_device_failures_total", "rank=\"0\""), 0);
  for (int failures = 1; failures <= 2; ++failures) {
    const auto stream = Submit({{100}}, 90000);
    WaitFor([&] { return stream->tokens[0].size() > 3; });
    engine_.broken = true;
    Wait(stream);
    Wait(Submit({{100}}, 3));
    EXPECT_EQ(Metric("dsv4_device_failures_total", "rank=\"0\""), failures);
    EXPECT_EQ(Metric("dsv4_device_restarts_total"), failures);
  }
}

}  // namespace
}  // namespace dsv4::server
