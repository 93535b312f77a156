// What the server tells of experts: metrics, and the file of --count-experts.
#include "server/metrics/expert_watch.h"

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

TEST(ExpertWatch, MetricsSayWhatTheEngineCounts) {
  FakeEngine engine(10);
  Metrics metrics("m");
  ExpertWatch watch(engine, metrics, "");
  EXPECT_THAT(metrics.Render({}), Not(HasSubstr("dsv4_expert")));
  engine.use = SomeUse();
  EXPECT_TRUE(watch.Look(/*idle=*/true).ok());
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

TEST(ExpertWatch, TheFileIsWrittenAtTheEnd) {
  const test::TempDir temp;
  FakeEngine engine(10);
  Metrics metrics("m");
  engine.use = SomeUse();
  ExpertWatch watch(engine, metrics, temp / "counts");
  EXPECT_TRUE(watch.Look(true).ok());
  EXPECT_FALSE(ReadExpertCounts(temp / "counts").ok()) << "once a minute";
  EXPECT_TRUE(watch.Finish().ok());
  EXPECT_EQ(ReadExpertCounts(temp / "counts")->chosen, engine.use.counts.chosen);
  ExpertWatch nowhere(engine, metrics, temp / "no/such/file");
  EXPECT_THAT(nowhere.Finish().message(), HasSubstr("no/such/file"));
}

class SchedulerExperts : public SchedulerTest {};

TEST_F(SchedulerExperts, CountsAreShownAfterAReplyAndKeptWhenItStops) {
  const test::TempDir temp;
  engine_.use = SomeUse();
  SchedulerOptions options;
  options.count_experts_file = temp / "counts";
  Start(options);
  const auto client = Submit({{200}}, 3);
  Wait(client);
  scheduler_->Stop();
  EXPECT_THAT(metrics_.Render({}), HasSubstr("dsv4_expert_choices_total"));
  EXPECT_TRUE(ReadExpertCounts(temp / "counts").ok());
}

}  // namespace
}  // namespace dsv4::server
