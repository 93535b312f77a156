// Expert statistics of a server: metrics, and the file of --count-experts.
#include "server/metrics/expert_watch.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsv4/experts.h"
#include "io/test_files.h"
#include "server/schedule/scheduler_fixture.h"

namespace dsv4::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ExpertUse SomeUse() {
  return {.experts = 6,
          .on_host = 2,
          .on_disk = 1,
          .host_bytes = 2000,
          .counted = true,
          .counts = {.num_layers = 2, .num_experts = 3, .chosen = {5, 0, 1, 2, 2, 2}},
          .chosen = 12,
          .chosen_resident = 9,
          .fetched_bytes = 3000,
          .swaps = 7,
          .moved_bytes = 14000,
          .disk_bytes = 500,
          .disk_seconds = 0.25,
          .cpu_experts = 11,
          .cpu_seconds = 0.125,
          .wait_seconds = 0.5};
}

// As after one more request.
void Count(ExpertUse* use) {
  for (uint64_t& chosen : use->counts.chosen) chosen += 10;
}

constexpr auto kMinute = ExpertWatch::kWriteEvery;

// From the start, not from the first step.
TEST(ExpertWatch, MetricsSayWhatTheEngineCounts) {
  FakeEngine engine(10);
  Metrics metrics("m");
  EXPECT_THAT(metrics.Render({}), Not(HasSubstr("dsv4_expert")));
  engine.use = SomeUse();
  ExpertWatch watch(engine, metrics, "");
  const std::string page = metrics.Render({});
  for (const char* line : {"dsv4_experts{model_name=\"m\",engine=\"0\",place=\"device\"} 3\n",
                           "dsv4_experts{model_name=\"m\",engine=\"0\",place=\"disk\"} 1\n",
                           "dsv4_experts{model_name=\"m\",engine=\"0\",place=\"host\"} 2\n",
                           "dsv4_expert_host_bytes{model_name=\"m\",engine=\"0\"} 2000\n",
                           "dsv4_expert_choices_total{model_name=\"m\",engine=\"0\"} 12\n",
                           "dsv4_expert_hits_total{model_name=\"m\",engine=\"0\"} 9\n",
                           "dsv4_expert_fetched_bytes_total{model_name=\"m\",engine=\"0\"} 3000\n",
                           "dsv4_expert_wait_seconds_total{model_name=\"m\",engine=\"0\"} 0.5\n",
                           "dsv4_expert_evictions_total{model_name=\"m\",engine=\"0\"} 7\n",
                           "dsv4_expert_cpu_total{model_name=\"m\",engine=\"0\"} 11\n",
                           "dsv4_expert_cpu_seconds_total{model_name=\"m\",engine=\"0\"} 0.125\n",
                           "dsv4_expert_disk_bytes_total{model_name=\"m\",engine=\"0\"} 500\n",
                           "dsv4_expert_disk_seconds_total{model_name=\"m\",engine=\"0\"} 0.25\n",
                           "dsv4_expert_moved_bytes_total{model_name=\"m\",engine=\"0\"} 14000\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST(ExpertWatch, AnEngineThatDoesNotCountIsAskedOnce) {
  FakeEngine engine(10);
  Metrics metrics("m");
  ExpertWatch watch(engine, metrics, "");
  EXPECT_TRUE(watch.Look(true).ok());
  engine.use = SomeUse();
  EXPECT_TRUE(watch.Look(true).ok());
  EXPECT_THAT(metrics.Render({}), Not(HasSubstr("dsv4_expert")));
}

class ExpertWatchFile : public ::testing::Test {
 protected:
  ExpertWatchFile() { engine_.use = SomeUse(); }
  std::vector<uint64_t> Written() {
    const auto counts = ReadExpertCounts(file_);
    return counts.ok() ? counts->chosen : std::vector<uint64_t>();
  }
  const std::vector<uint64_t> tens_ = std::vector<uint64_t>(6, 10), twenties_ = std::vector<uint64_t>(6, 20);
  test::TempDir temp_;
  const std::string file_ = temp_ / "counts";
  FakeEngine engine_{10};
  Metrics metrics_{"m"};
};

TEST_F(ExpertWatchFile, IsWrittenOnceAMinuteAndAtTheEndAlsoOfAnIdleServer) {
  ExpertWatch watch(engine_, metrics_, file_);
  EXPECT_FALSE(watch.next_write());
  Count(&engine_.use);
  EXPECT_TRUE(watch.Look(/*idle=*/true).ok());
  EXPECT_EQ(Written(), std::vector<uint64_t>()) << "once a minute";
  const auto minute = watch.next_write();
  ASSERT_TRUE(minute);
  EXPECT_TRUE(watch.Look(/*idle=*/false, *minute).ok()) << "idle, except for streams that no client reads";
  EXPECT_EQ(Written(), tens_) << "without what was counted before";
  EXPECT_FALSE(watch.next_write()) << "nothing to wake for";
  Count(&engine_.use);
  EXPECT_TRUE(watch.Finish().ok());
  EXPECT_EQ(Written(), twenties_);
}

TEST_F(ExpertWatchFile, StaysAsItIsWhereNothingWasCounted) {
  ASSERT_TRUE(WriteExpertCounts(file_, {.num_layers = 1, .num_experts = 1, .chosen = {7}}).ok());
  ExpertWatch watch(engine_, metrics_, file_);
  EXPECT_TRUE(watch.Look(true, ExpertWatch::Clock::now() + 2 * kMinute).ok());
  EXPECT_TRUE(watch.Finish().ok());
  EXPECT_EQ(Written(), std::vector<uint64_t>{7});
}

TEST_F(ExpertWatchFile, IsAddedToAndKeepsWhatAnEngineHadCountedThatIsOpenedAnew) {
  const ExpertCounts kept{.num_layers = 2, .num_experts = 3, .chosen = {1, 2, 3, 4, 5, 6}};
  ExpertWatch watch(engine_, metrics_, file_, kept);
  Count(&engine_.use);
  EXPECT_TRUE(watch.Look(true).ok());
  engine_.use.counts.chosen = {1, 0, 0, 0, 0, 0};
  EXPECT_TRUE(watch.Finish().ok());
  EXPECT_EQ(Written(), (std::vector<uint64_t>{12, 12, 13, 14, 15, 16}));
}

TEST_F(ExpertWatchFile, IsTriedAgainEachMinuteAndToldOfOnce) {
  const std::string folder = temp_ / "late";
  ExpertWatch watch(engine_, metrics_, folder + "/counts");
  Count(&engine_.use);
  auto now = ExpertWatch::Clock::now() + kMinute;
  EXPECT_THAT(watch.Look(true, now).message(), HasSubstr("late/counts"));
  EXPECT_TRUE(watch.Look(true, now += kMinute).ok()) << "in silence";
  EXPECT_EQ(watch.next_write(), now + kMinute);
  EXPECT_THAT(watch.Finish().message(), HasSubstr("late/counts")) << "at the end it is lost";
  std::filesystem::create_directory(folder);
  EXPECT_TRUE(watch.Look(true, now += kMinute).ok());
  EXPECT_EQ(ReadExpertCounts(folder + "/counts")->chosen, tens_);
  std::filesystem::remove_all(folder);
  Count(&engine_.use);
  EXPECT_FALSE(watch.Look(true, now += kMinute).ok()) << "another failure is reported";
}

class SchedulerExperts : public SchedulerTest {};

TEST_F(SchedulerExperts, CountsAreShownAfterAReplyAndKeptWhenItStops) {
  const test::TempDir temp;
  engine_.use = SomeUse();
  engine_.before_step = [this] { Count(&engine_.use); };
  SchedulerOptions options;
  options.count_experts_file = temp / "counts";
  options.counted_experts = {.num_layers = 2, .num_experts = 3, .chosen = {5, 5, 5, 5, 5, 5}};
  Start(options);
  const auto client = Submit({{200}}, 3);
  Wait(client);
  scheduler_->Stop();
  EXPECT_THAT(metrics_.Render({}), HasSubstr("dsv4_expert_choices_total"));
  const auto counts = ReadExpertCounts(temp / "counts");
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->chosen.front() % 10, 5u) << "added to what was there";
  EXPECT_GT(counts->chosen.front(), 5u);
}

// Although no request wakes the engine.
TEST_F(SchedulerExperts, CountsOfAnIdleServerAreWritten) {
  const test::TempDir temp;
  engine_.use = SomeUse();
  engine_.before_step = [this] { Count(&engine_.use); };
  SchedulerOptions options;
  options.count_experts_file = temp / "counts";
  options.count_experts_every = std::chrono::milliseconds(1500);
  Start(options);
  Wait(Submit({{200}}, 1));
  WaitIdle();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(temp / "counts") && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(std::filesystem::exists(temp / "counts"));
}

}  // namespace
}  // namespace dsv4::server
