// Experts in host memory: the same bits; the plan, the counts and the refusals. The CPU takes the role of the device,
// with a memory limit.
#include "engine/memory/host_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsv4/experts.h"
#include "dsv4/inspect.h"
#include "engine/drafts/drafts_fixture.h"
#include "engine/engine_impl.h"
#include "engine/memory/expert_places_fixture.h"
#include "engine/memory/memory_plan.h"
#include "io/test_files.h"
#include "support/random.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNanoLayers = 3, kNanoExperts = 16, kNanoChosen = 3;

EngineOptions SkewableNano(bool skewed = false) {
  return {.model_dir = "",
          .synthetic = {.shape = "nano", .num_layers = kNanoLayers, .skewed_routing = skewed},
          .num_threads = 2,
          .offload = {.kv_room = int64_t{4} << 20}};
}

// A limit that keeps this share of the experts on the device.
int64_t LimitFor(EngineOptions options, double resident) {
  const MemoryPlan whole = PlanFor(options);
  options.offload.gpu_memory = 1;
  const MemoryPlan least = PlanFor(options);
  EXPECT_EQ(SumOf(least.experts_on_host), least.experts);
  const double moved = (1 - resident) * static_cast<double>(least.host_expert_bytes);
  return NeededBytes(whole, whole.ranks * options.offload.kv_room) - least.host_embedding_bytes -
         static_cast<int64_t>(moved);
}

const Ranks& RanksOf(Engine& engine) { return dynamic_cast<EngineImpl&>(engine).ranks(); }

// Stops the engine from moving experts: the test controls the placement.
void KeepPlaces(Engine& engine) { dynamic_cast<EngineImpl&>(engine).repicker() = Repicker(); }

// Begins some random swaps on every rank. Returns how many on rank 0; 0 while others are in progress.
int64_t BeginSwaps(Engine& engine, Random& random) {
  std::vector<ExpertSwap> swaps;
  for (int i = 0; i < 60; ++i)
    swaps.push_back({random.Index(kNanoLayers), random.Index(kNanoExperts), random.Index(kNanoExperts)});
  std::vector<int64_t> begun;
  for (int r = 0; r < RanksOf(engine).count(); ++r)
    begun.push_back(RanksOf(engine).runner(r).model().BeginSwaps(swaps));
  for (const int64_t n : begun) EXPECT_EQ(n, begun[0]);
  return begun[0];
}
// Continues the swaps by one turn. False: they are still in progress.
bool ContinueSwaps(Engine& engine) {
  bool done = true;
  for (int r = 0; r < RanksOf(engine).count(); ++r) {
    Runner& runner = RanksOf(engine).runner(r);
    done = runner.model().ContinueSwaps(runner.device()) && done;
  }
  return done;
}

TEST(HostExperts, AnyPartOfThemOnTheHostGivesTheSameBits) {
  const TempDir temp;
  Random random(5);  // a random part of the experts, by meaningless counts
  ExpertCounts counts{.num_layers = kNanoLayers, .num_experts = kNanoExperts, .chosen = {}};
  for (int64_t i = 0; i < kNanoLayers * kNanoExperts; ++i)
    counts.chosen.push_back(static_cast<uint64_t>(random.Index(1000)));
  ASSERT_TRUE(WriteExpertCounts(temp / "counts", counts).ok());
  for (const char* device : {"cpu", "cpu*2"}) {
    EngineOptions options = SkewableNano();
    options.device = device;
    const std::vector<float> want = SomeLogits(*LoadOrFail(options));
    options.offload.expert_counts = temp / "counts";
    for (const double resident : {0.8, 0.2}) {
      EngineOptions less = options;
      less.offload.gpu_memory = LimitFor(options, resident);
      EXPECT_NEAR(static_cast<double>(SumOf(PlanFor(less).experts_on_host)),
                  (1 - resident) * kNanoLayers * kNanoExperts, 1);
      const auto engine = LoadOrFail(less);
      ASSERT_NE(engine, nullptr);
      KeepPlaces(*engine);
      EXPECT_TRUE(SomeLogits(*engine) == want) << device << ", " << resident;
      const ExpertUse use = engine->expert_use().value();
      EXPECT_EQ(use.on_host, SumOf(PlanFor(less).experts_on_host));
      EXPECT_EQ(use.host_bytes, PlanFor(less).host_expert_bytes);
      EXPECT_GT(use.fetched_bytes, 0);
    }
  }
}

TEST(HostExperts, ThePlanAddsUp) {
  EngineOptions options = SkewableNano();
  const MemoryPlan whole = PlanFor(options);
  EXPECT_EQ(whole.experts, kNanoLayers * kNanoExperts);
  EXPECT_TRUE(whole.experts_on_host.empty());
  EXPECT_EQ(whole.host_expert_bytes, 0);
  EXPECT_EQ(whole.host_embedding_bytes, 0);
  options.offload.gpu_memory = LimitFor(options, 0.5);
  const MemoryPlan half = PlanFor(options);
  EXPECT_EQ(half.available_bytes, options.offload.gpu_memory);
  EXPECT_GT(half.host_embedding_bytes, 0);
  EXPECT_EQ(half.weight_bytes + half.host_embedding_bytes + half.host_expert_bytes, whole.weight_bytes);
  EXPECT_TRUE(Fits(half, options.offload.kv_room));
  EXPECT_FALSE(Fits(half, options.offload.kv_room + half.host_expert_bytes));
  ASSERT_EQ(half.experts_on_host.size(), static_cast<size_t>(kNanoLayers));
  const auto [least, most] = std::minmax_element(half.experts_on_host.begin(), half.experts_on_host.end());
  EXPECT_LE(*most - *least, 1);
  const int64_t bytes = half.host_expert_bytes / SumOf(half.experts_on_host);
  EXPECT_NEAR(
      half.host_bytes_per_token,
      static_cast<double>(kNanoChosen) / kNanoExperts * static_cast<double>(SumOf(half.experts_on_host) * bytes), 1);
}

TEST(HostExperts, TheEmbeddingTableLeavesBeforeTheFirstExpert) {
  EngineOptions options = SkewableNano();
  const std::vector<float> want = SomeLogits(*LoadOrFail(options));
  options.offload.gpu_memory = LimitFor(options, 1);
  const MemoryPlan plan = PlanFor(options);
  EXPECT_GT(plan.host_embedding_bytes, 0);
  EXPECT_TRUE(plan.experts_on_host.empty());
  EXPECT_TRUE(SomeLogits(*LoadOrFail(options)) == want);
}

TEST(HostExperts, RoomForKvIsKept) {
  EngineOptions options = SkewableNano();
  options.offload.gpu_memory = LimitFor(options, 0.9);
  const MemoryPlan usual = PlanFor(options);
  options.offload.kv_room = 8 << 20;
  const MemoryPlan more = PlanFor(options);
  EXPECT_GT(more.host_expert_bytes, usual.host_expert_bytes);
  EXPECT_GE(more.available_bytes - NeededBytes(more, 0), 8 << 20);
}

// Not even with all experts on the host; less memory for KV than requested.
TEST(HostExperts, RoomThatCannotBeGivenIsRefusedWithWhatCan) {
  for (const char* device : {"cpu", "cpu*2"}) {
    EngineOptions options = SkewableNano();
    options.device = device;
    options.offload.gpu_memory = LimitFor(options, 0.5);
    options.offload.kv_room = kMaxMemoryBytes;
    const Status status = Engine::Load(options).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("--kv-room"), HasSubstr("--kv-budget")));
    const std::string ask = "request at most ", message = status.message();
    ASSERT_NE(message.find(ask), std::string::npos) << message;
    options.offload.kv_room = std::stoll(message.substr(message.find(ask) + ask.size()));
    EXPECT_EQ(SumOf(PlanFor(options).experts_on_host), kNanoLayers * kNanoExperts) << device;
    EXPECT_NE(LoadOrFail(options), nullptr) << device;
    options.offload.kv_room += 1 << 20;
    EXPECT_EQ(Engine::Load(options).status().code(), StatusCode::kResourceExhausted) << device;
  }
  EngineOptions options = SkewableNano();
  for (int64_t OffloadOptions::*bytes :
       {&OffloadOptions::kv_room, &OffloadOptions::gpu_memory, &OffloadOptions::host_memory}) {
    EngineOptions most = options;
    most.offload.*bytes = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(Engine::Load(most).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(HostExperts, WhatFitsNowhereIsRefusedWithTheNumbers) {
  EngineOptions options = SkewableNano();
  options.offload.gpu_memory = 3 << 20;
  const auto engine = Engine::Load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(engine.status().message(), HasSubstr(std::to_string(3 << 20)));
  EXPECT_THAT(engine.status().message(), HasSubstr("raise --gpu-memory (in bytes; 80G is 80 GiB)"));

  MemoryPlan plan{};
  plan.device = "a GPU";
  plan.devices = 2;
  plan.host_expert_bytes = 900;
  plan.host_embedding_bytes = 100;
  plan.host_staging_bytes = 10;
  plan.host_available_bytes = 1020 + (int64_t{1} << 30);
  EXPECT_TRUE(CheckHost(plan, DeviceKind::kCuda, false).ok());
  --plan.host_available_bytes;
  const Status status = CheckHost(plan, DeviceKind::kCuda, /*from_files=*/false);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("1000"));
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(plan.host_available_bytes)));
  EXPECT_THAT(status.message(), HasSubstr("load a checkpoint"));
  EXPECT_THAT(CheckHost(plan, DeviceKind::kCuda, /*from_files=*/true).message(), Not(HasSubstr("load a checkpoint")));

  EngineOptions files{.model_dir = "somewhere", .offload = {.gpu_memory = 1}};
  EXPECT_EQ(Engine::Load(files).status().code(), StatusCode::kInvalidArgument);
  files.offload.gpu_memory = 0, files.offload.expert_slots = 2;
  EXPECT_EQ(Engine::Load(files).status().code(), StatusCode::kInvalidArgument);
  options.offload.expert_slots = -1;
  EXPECT_EQ(Engine::Load(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(HostExperts, ChoicesAreCounted) {
  EngineOptions options = SkewableNano();
  options.count_experts = true;
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const ExpertUse before = engine->expert_use().value();
  EXPECT_TRUE(before.counted);
  EXPECT_EQ(before.chosen, 0u);
  (void)SomeLogits(*engine);
  const ExpertUse use = engine->expert_use().value();
  EXPECT_EQ(use.experts, kNanoLayers * kNanoExperts);
  EXPECT_EQ(use.on_host, 0);
  EXPECT_EQ(use.chosen, static_cast<uint64_t>(60 * kNanoChosen * kNanoLayers));
  EXPECT_EQ(use.chosen_resident, use.chosen);
  EXPECT_EQ(use.fetched_bytes, 0);
  for (int64_t l = 0; l < kNanoLayers; ++l) {
    uint64_t of_layer = 0;
    for (int64_t e = 0; e < kNanoExperts; ++e) of_layer += use.counts.chosen[static_cast<size_t>(l * kNanoExperts + e)];
    EXPECT_EQ(of_layer, static_cast<uint64_t>(60 * kNanoChosen)) << l;
  }
  EXPECT_FALSE(LoadOrFail(SkewableNano())->expert_use()->counted) << "not requested";
}

TEST(HostExperts, ChoicesOfAFilesModelAreCounted) {
  EngineOptions options{.model_dir = DSV4_SOURCE_DIR "/models/nano", .num_threads = 2, .count_experts = true};
  for (const char* device : {"cpu", "cpu*2"}) {
    options.device = device;
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    (void)SomeLogits(*engine);
    const ExpertUse use = engine->expert_use().value();
    EXPECT_GT(use.chosen, 0u) << device;
    EXPECT_EQ(use.chosen % 60, 0u) << device;
    EXPECT_EQ(use.on_host, 0);
  }
  EXPECT_TRUE(PlanFor(options).experts_on_host.empty());
}

// The most chosen experts stay; the bytes fetched match the counters.
TEST(HostExperts, ByCountsTheHotOnesStay) {
  const TempDir temp;
  EngineOptions options = SkewableNano(/*skewed=*/true);
  options.count_experts = true;
  const auto whole = LoadOrFail(options);
  (void)SomeLogits(*whole);
  ASSERT_TRUE(WriteExpertCounts(temp / "counts", whole->expert_use()->counts).ok());
  options.count_experts = false;
  options.offload.gpu_memory = LimitFor(options, 0.5);
  const auto hit_rate = [&](const std::string& file) {
    EngineOptions o = options;
    o.offload.expert_counts = file;
    const auto engine = LoadOrFail(o);
    KeepPlaces(*engine);  // a slow run would have time to change the placement of the file's counts
    (void)SomeLogits(*engine);
    const ExpertUse use = engine->expert_use().value();
    EXPECT_TRUE(use.counted);
    EXPECT_NEAR(static_cast<double>(use.on_host), kNanoLayers * kNanoExperts / 2.0, 1);
    EXPECT_GT(use.fetched_bytes, 0);
    EXPECT_EQ(use.host_bytes % use.on_host, 0);
    EXPECT_EQ(std::fmod(use.fetched_bytes, static_cast<double>(use.host_bytes / use.on_host)), 0);
    return static_cast<double>(use.chosen_resident) / static_cast<double>(use.chosen);
  };
  const double by_counts = hit_rate(temp / "counts"), evenly = hit_rate("");
  EXPECT_GT(by_counts, 0.75);
  EXPECT_GT(by_counts, evenly + 0.1);
}

// Random swaps, and steps at each of their turns: the bits do not change.
TEST(HostExperts, ExpertsThatChangePlacesGiveTheSameBits) {
  for (const char* device : {"cpu", "cpu*2"}) {
    EngineOptions options = SkewableNano();
    options.device = device;
    const std::vector<float> want = SomeLogits(*LoadOrFail(options));
    options.offload.gpu_memory = LimitFor(options, 0.4);
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    KeepPlaces(*engine);
    Random random(17);
    int64_t made = 0;
    for (int round = 0; round < 2; ++round) {
      made += BeginSwaps(*engine, random);
      EXPECT_EQ(BeginSwaps(*engine, random), 0) << "others are in progress";
      for (int turn = 0; turn < 3; ++turn) {
        EXPECT_TRUE(SomeLogits(*engine) == want) << device << ", round " << round << ", turn " << turn;
        EXPECT_EQ(ContinueSwaps(*engine), turn == 2);
      }
    }
    EXPECT_TRUE(SomeLogits(*engine) == want) << device;
    EXPECT_EQ(made, 2 * kMostSwapsAtOnce);
    while (!ContinueSwaps(*engine)) {
    }
    const ExpertUse use = engine->expert_use().value();
    EXPECT_EQ(use.on_host, SumOf(PlanFor(options).experts_on_host));
    EXPECT_GE(use.swaps, made);
    EXPECT_GT(use.moved_bytes, 0);
    EXPECT_EQ(use.wait_seconds, 0);
    EXPECT_LT(use.chosen_resident, use.chosen);
  }
}

// Batches with every option, drafts, and sessions that continue from a snapshot (as the prefix cache does), while
// experts swap between them.
TEST(HostExperts, BatchesDraftsAndSnapshotsKnowNothingOfPlaces) {
  for (const char* device : {"cpu", "cpu*2"}) {
    EngineOptions options = SkewableNano();
    options.device = device;
    const auto whole = LoadOrFail(options);
    const std::vector<DraftWanted> wanted = EveryOption(3);
    const std::vector<DraftOutcome> plain = DraftedDecode(*whole).Run(wanted, nullptr, 0);
    const std::vector<float> behind = ExpectSnapshotGoesOn(*whole).logits;
    options.offload.gpu_memory = LimitFor(options, 0.4);
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    KeepPlaces(*engine);
    Random random(23);
    for (int round = 0; round < 2; ++round) {
      (void)BeginSwaps(*engine, random);
      EXPECT_EQ(DraftedDecode(*engine).Differences(wanted, plain, std::make_unique<LookupDrafter>(), 5), "") << device;
      (void)ContinueSwaps(*engine);
      EXPECT_EQ(ExpectSnapshotGoesOn(*engine).logits, behind) << device;
      (void)ContinueSwaps(*engine);
    }
  }
}

// Two cache slots per layer, which sixteen experts share in turn while a batch decodes.
TEST(HostExperts, TwoSlotsALayerUnderABatchGiveTheSameBits) {
  for (const char* device : {"cpu", "cpu*2"}) {
    EngineOptions options = SkewableNano(/*skewed=*/true);
    options.device = device;
    const auto whole = LoadOrFail(options);
    options.offload.expert_slots = 2;
    EXPECT_EQ(PlanFor(options).experts_on_host, std::vector<int64_t>(kNanoLayers, kNanoExperts - 2));
    EXPECT_EQ(PlanFor(options).host_embedding_bytes, 0) << "it fits";
    const auto few = LoadOrFail(options);
    ASSERT_NE(few, nullptr);
    KeepPlaces(*few);
    std::vector<std::unique_ptr<Session>> sessions[2];
    for (size_t e = 0; e < 2; ++e) {
      for (int i = 0; i < 5; ++i) sessions[e].push_back((e == 0 ? whole : few)->NewSession().value());
    }
    Random random(29);
    int64_t turns = 0;
    for (int step = 0; step < 60; ++step) {
      std::vector<float> logits[2][5];
      const std::vector<TokenId> ids = SomeTokens(5, static_cast<uint64_t>(step) + 1, 4096);
      for (size_t e = 0; e < 2; ++e) {
        std::vector<StepItem> items;
        for (size_t i = 0; i < 5; ++i)
          items.push_back({.session = sessions[e][i].get(), .tokens = {&ids[i], 1}, .logits = &logits[e][i]});
        ASSERT_TRUE((e == 0 ? whole : few)->Step(items).ok());
      }
      for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(logits[0][i] == logits[1][i]) << device << ", step " << step;
      if (BeginSwaps(*few, random) == 0) (void)ContinueSwaps(*few), ++turns;
    }
    const ExpertUse use = few->expert_use().value();
    EXPECT_GT(turns, 40);
    EXPECT_GT(use.swaps, 40);
    EXPECT_EQ(use.chosen, static_cast<uint64_t>(60 * 5 * kNanoChosen * kNanoLayers));
    EXPECT_GT(use.chosen_resident, 0u);
    EXPECT_LT(use.chosen_resident, use.chosen / 2);
    EXPECT_GT(use.fetched_bytes, 0);
  }
}

// Experts that tokens choose move to the device, without a file of counts.
TEST(HostExperts, RepickingFollowsWhatIsChosen) {
  EngineOptions options = SkewableNano(/*skewed=*/true);
  const std::vector<TokenId> tokens = SomeTokens(200, 9, 4096);
  const std::vector<float> want = AllLogits(*LoadOrFail(options), tokens);
  options.offload.gpu_memory = LimitFor(options, 0.5);
  const auto engine = LoadOrFail(options);
  KeepPlaces(*engine);  // a slow run would otherwise move some before the first look
  Repicker repicker;
  repicker.TurnOn();
  Ranks& ranks = dynamic_cast<EngineImpl&>(*engine).ranks();
  auto now = Repicker::Clock::now();
  const auto look = [&] {  // one second later; waits for the swaps
    const int64_t before = engine->expert_use()->swaps;
    for (int i = 0; i < 100; ++i) repicker.Look(ranks, now += std::chrono::milliseconds(10));
    return engine->expert_use()->swaps - before;
  };
  ExpertUse before;
  const auto hit_rate = [&] {
    EXPECT_TRUE(AllLogits(*engine, tokens) == want);
    const ExpertUse use = engine->expert_use().value();
    const auto hits = static_cast<double>(use.chosen_resident - before.chosen_resident);
    EXPECT_GE(use.fetched_bytes, before.fetched_bytes);
    const auto all = static_cast<double>(use.chosen - before.chosen);
    before = use;
    return hits / all;
  };
  const double evenly = hit_rate();
  EXPECT_GT(look(), 0);
  const ExpertUse after = engine->expert_use().value();
  EXPECT_EQ(after.chosen_resident, before.chosen_resident) << "what was a hit stays one";
  EXPECT_EQ(after.fetched_bytes, before.fetched_bytes);
  EXPECT_EQ(after.on_host, before.on_host);
  const double picked = hit_rate();
  EXPECT_GT(picked, evenly + 0.1);
  EXPECT_GT(picked, 0.75);
  for (int i = 0; i < 3; ++i) (void)hit_rate(), (void)look();
  EXPECT_EQ(look(), 0) << "the placement is already the best";
}

// On a CPU the weights of files need not fit in memory.
TEST(HostExperts, WhatMemoryDoesNotHoldStaysOnTheDisk) {
  EngineOptions options{.model_dir = DSV4_SOURCE_DIR "/models/nano", .num_threads = 2};
  EXPECT_EQ(PlanFor(options).disk_bytes, 0);
  EXPECT_EQ(PlanFor(options).disk_bytes_per_token, 0);
  const std::vector<float> want = SomeLogits(*LoadOrFail(options));
  const MemoryPlan whole = PlanFor(options);
  options.offload.host_memory = NeededBytes(whole, 0) - whole.scratch_bytes - 100'000;
  MemoryPlan plan = PlanFor(options);
  EXPECT_EQ(plan.available_bytes, options.offload.host_memory);
  EXPECT_EQ(plan.disk_bytes, 100'000);
  EXPECT_GT(plan.disk_bytes_per_token, 0);
  EXPECT_LT(plan.disk_bytes_per_token, 100'000) << "of experts, not all are chosen";
  options.offload.host_memory = 1;
  options.on_plan = [&](const MemoryPlan& p) { plan = p; };
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(plan.disk_bytes, whole.weight_bytes);
  EXPECT_GT(plan.disk_rate, 0);
  EXPECT_TRUE(SomeLogits(*engine) == want);
  options.offload.host_memory = -1;
  EXPECT_EQ(Engine::Load(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(HostExperts, SkewedRoutingIsSkewed) {
  const auto share_of_first = [](bool skewed) {
    EngineOptions options = SkewableNano(skewed);
    options.count_experts = true;
    const auto engine = LoadOrFail(options);
    (void)AllLogits(*engine, SomeTokens(200, 9, 4096));
    const ExpertUse use = engine->expert_use().value();
    uint64_t first = 0;
    for (size_t l = 0; l < kNanoLayers; ++l) {
      std::vector<uint64_t> layer(use.counts.chosen.begin() + static_cast<std::ptrdiff_t>(16 * l),
                                  use.counts.chosen.begin() + static_cast<std::ptrdiff_t>(16 * l + 16));
      std::sort(layer.rbegin(), layer.rend());
      first += std::accumulate(layer.begin(), layer.begin() + 4, uint64_t{0});
    }
    return static_cast<double>(first) / static_cast<double>(use.chosen);
  };
  EXPECT_LT(share_of_first(false), 0.5);
  EXPECT_GT(share_of_first(true), 0.5);
}

TEST(HostExperts, CountsOfAnotherModelAreRefusedWithTheNumbers) {
  const TempDir temp;
  ASSERT_TRUE(WriteExpertCounts(temp / "c", {.num_layers = 2, .num_experts = 3, .chosen = {1, 2, 3, 4, 5, 6}}).ok());
  EngineOptions options = SkewableNano();
  options.offload.expert_counts = temp / "c";
  const Status status = Engine::Load(options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("counts 3 experts in 2 layers; the model has 16 in 3"));
}

}  // namespace
}  // namespace dsv4::test
