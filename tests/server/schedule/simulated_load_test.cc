// The scheduler under loads of a large model, in simulated time.
#include "server/schedule/simulated_load.h"

#include <cstdio>
#include <string>

namespace dsv4::server {
namespace {

SchedulerOptions Balanced() { return {.prefill_chunk = 4096}; }
SchedulerOptions Throughput() { return {.max_running = 128, .prefill_chunk = 4096, .max_gap_s = 0}; }
SchedulerOptions Latency() { return {.max_running = 16, .prefill_chunk = 4096, .max_gap_s = 0.06}; }

std::vector<SimulatedLoad::Client> Same(size_t count, int64_t prompt, int64_t reply) {
  return std::vector<SimulatedLoad::Client>(count, {.prompt = prompt, .reply = reply});
}

std::string Text(const LoadResult& r) {
  std::array<char, 200> text;
  std::snprintf(text.data(), text.size(), "%.0f tokens/s; first tokens %.2f, %.2f, %.2f s; gaps %.0f, %.0f, %.0f ms",
                r.tokens_s, r.first_median, r.first_p90, r.first_max, 1e3 * r.gap_median, 1e3 * r.gap_p99,
                1e3 * r.gap_max);
  return text.data();
}

SimulatedCosts HostMs(double each) {
  SimulatedCosts costs;
  costs.cut_ms = costs.end_ms = each;
  return costs;
}

// The load in which a scheduler that takes host work for the passes' time reads 400 tokens a step: 2,200 to 5,100
// tokens per second, and first tokens after 3 to 75 s.
TEST(SimulatedLoad, LongPromptsByDefault) {
  const LoadResult a = SimulatedLoad(kCostsA, Balanced()).Closed(Same(64, 5120, 640), 150);
  EXPECT_GE(a.tokens_s, 6350) << Text(a);
  EXPECT_LE(a.first_median, 1.5) << Text(a);
  EXPECT_LE(a.first_p90, 5) << Text(a);
  EXPECT_LE(a.gap_p99, 0.4) << Text(a);
  const LoadResult c = SimulatedLoad(kCostsC, Balanced()).Closed(Same(64, 5120, 640), 200);
  EXPECT_GE(c.tokens_s, 5800) << Text(c);
  EXPECT_LE(c.first_median, 2) << Text(c);
  EXPECT_LE(c.gap_p99, 0.44) << Text(c);
  const LoadResult cheap = SimulatedLoad(HostMs(10), Balanced()).Closed(Same(64, 5120, 640), 200);
  EXPECT_GE(cheap.tokens_s, 7300) << Text(cheap);
  EXPECT_LE(cheap.first_median, 1.5) << Text(cheap);
  EXPECT_LE(cheap.gap_p99, 0.35) << Text(cheap);
}

// The bound costs little: without one the same load is hardly faster.
TEST(SimulatedLoad, TheDefaultIsNearlyAsFastAsThroughput) {
  for (const SimulatedCosts& costs : {kCostsA, HostMs(10)}) {
    const LoadResult none = SimulatedLoad(costs, Throughput()).Closed(Same(64, 5120, 640), 150);
    const LoadResult bound = SimulatedLoad(costs, Balanced()).Closed(Same(64, 5120, 640), 150);
    EXPECT_GE(bound.tokens_s, 0.95 * none.tokens_s) << Text(bound) << " without: " << Text(none);
  }
}

TEST(SimulatedLoad, FewClients) {
  const LoadResult balanced = SimulatedLoad(HostMs(10), Balanced()).Closed(Same(8, 1024, 256), 100);
  EXPECT_GE(balanced.tokens_s, 2200) << Text(balanced);
  EXPECT_LE(balanced.first_median, 0.3) << Text(balanced);
  EXPECT_LE(balanced.gap_p99, 0.25) << Text(balanced);
  // Gaps first, but prompts do not starve.
  const LoadResult latency = SimulatedLoad(HostMs(10), Latency()).Closed(Same(8, 1024, 256), 100);
  EXPECT_GE(latency.tokens_s, 1000) << Text(latency);
  EXPECT_LE(latency.first_median, 2) << Text(latency);
  EXPECT_LE(latency.gap_p99, 0.12) << Text(latency);
  const LoadResult longer = SimulatedLoad(HostMs(10), Latency()).Closed(Same(8, 5120, 640), 150);
  EXPECT_LE(longer.first_median, 3) << Text(longer);
  EXPECT_LE(longer.gap_p99, 0.12) << Text(longer);
}

TEST(SimulatedLoad, ABurstOfShortPrompts) {
  for (const auto& [costs, median, last] :
       {std::tuple{kCostsA, 4.5, 8.0}, {HostMs(10), 3.1, 5.8}, {HostMs(0), 2.6, 5.0}}) {
    const LoadResult r = SimulatedLoad(costs, Balanced()).Burst(Same(64, 512, 128));
    EXPECT_LE(r.first_median, median) << Text(r);
    EXPECT_LE(r.first_max, last) << Text(r);
  }
}

TEST(SimulatedLoad, ManyStreams) {
  for (const size_t count : {128, 256}) {
    SchedulerOptions options = Balanced();
    options.max_running = static_cast<int64_t>(count);
    options.max_waiting = 512;
    const LoadResult r = SimulatedLoad(HostMs(10), options).Closed(Same(count, 512, 256), 80);
    EXPECT_GE(r.tokens_s, 3000) << Text(r);
    EXPECT_LE(r.first_median, count == 128 ? 1 : 5) << Text(r);
    EXPECT_LE(r.gap_p99, 0.5) << Text(r);
    EXPECT_GE(r.done, 200u);
  }
}

TEST(SimulatedLoad, RandomArrivals) {
  const LoadResult r = SimulatedLoad(HostMs(10), Balanced()).Poisson({.prompt = 5120, .reply = 640}, 0.9, 150);
  EXPECT_GE(r.tokens_s, 0.8 * 0.9 * 5760) << Text(r);
  EXPECT_LE(r.first_median, 1) << Text(r);
  EXPECT_LE(r.first_p90, 2) << Text(r);
  EXPECT_LE(r.gap_p99, 0.4) << Text(r);
  EXPECT_GE(r.done, 100u);
}

// Short prompts pass the long one, which waits hardly longer than without a bound.
TEST(SimulatedLoad, AVeryLongPromptBesideShortOnes) {
  auto clients = Same(32, 200, 200);
  clients[0].prompt = 100000;
  SimulatedLoad bound(kCostsA, Balanced()), none(kCostsA, Throughput());
  const LoadResult r = bound.Closed(clients, 60);
  none.Closed(clients, 60);
  ASSERT_GT(none.FirstToken(0), 0);
  ASSERT_GT(bound.FirstToken(0), 0);
  EXPECT_LE(bound.FirstToken(0), 1.5 * none.FirstToken(0));
  EXPECT_LE(r.first_median, 0.6) << Text(r);
  EXPECT_LE(r.first_p90, 1) << Text(r);
}

TEST(SimulatedLoad, SharedPrefixes) {
  auto clients = Same(64, 5120, 640);
  for (auto& client : clients) client.shared = 4000;
  SimulatedLoad load(HostMs(10), Balanced());
  const LoadResult r = load.Closed(clients, 80);
  EXPECT_GE(r.tokens_s, 9000) << Text(r);
  EXPECT_LE(r.first_median, 0.8) << Text(r);
  EXPECT_GE(load.Metric("vllm:prefix_cache_hits_total"), 0.6 * load.Metric("vllm:prefix_cache_queries_total"));
}

// A machine of a third of the speed keeps the bound as far as it can.
TEST(SimulatedLoad, ASlowMachine) {
  SimulatedCosts costs = HostMs(10);
  costs.slow = 3;
  const LoadResult r = SimulatedLoad(costs, Balanced()).Closed(Same(16, 1024, 256), 150);
  EXPECT_LE(r.gap_p99, 0.5) << Text(r);
  EXPECT_LE(r.first_median, 4) << Text(r);
}

}  // namespace
}  // namespace dsv4::server
