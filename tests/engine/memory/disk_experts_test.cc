// Experts for which neither the device nor host memory has space: the same bits; the plan; the counts. The CPU takes
// the role of the device, with a memory limit. Synthetic weights in host memory take the role of the files.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4/experts.h"
#include "dsv4/inspect.h"
#include "engine/drafts/drafts_fixture.h"
#include "engine/drafts/model_drafts_fixture.h"
#include "engine/engine_impl.h"
#include "engine/memory/expert_places_fixture.h"
#include "engine/memory/memory_plan.h"
#include "support/random.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

constexpr int64_t kDiskLayers = 3, kDiskExperts = 16, kDiskChosen = 3;
constexpr int64_t kDiskProgram = int64_t{1} << 30;  // reserved for the program by the plan

EngineOptions DiskNano(const char* device = "cpu") {
  return {.model_dir = "",
          .synthetic = {.shape = "nano", .num_layers = kDiskLayers},
          .device = device,
          .num_threads = 2,
          .offload = {.kv_room = int64_t{4} << 20}};
}

// Limits that keep a third of the experts on the device, and the share `host` of the others on the host.
EngineOptions ShortOfMemory(EngineOptions options, double host) {
  const MemoryPlan whole = PlanFor(options);
  options.offload.gpu_memory = 1;
  const MemoryPlan least = PlanFor(options);
  options.offload.gpu_memory = NeededBytes(whole, whole.ranks * options.offload.kv_room) - least.host_embedding_bytes -
                               least.host_expert_bytes * 2 / 3;
  const MemoryPlan away = PlanFor(options);
  EXPECT_TRUE(away.experts_on_disk.empty());
  // an eighth is left to the page cache
  const double room = static_cast<double>(away.host_expert_bytes) * host * 8 / 7;
  options.offload.host_memory = away.host_embedding_bytes + away.weight_bytes + away.widened_bytes + kDiskProgram +
                                static_cast<int64_t>(room);
  return options;
}

// Random swaps between host and device; swaps with an expert on the disk are left out.
void SwapSome(Engine& engine, Random& random) {
  const Ranks& ranks = dynamic_cast<EngineImpl&>(engine).ranks();
  std::vector<ExpertSwap> swaps;
  for (int i = 0; i < 60; ++i)
    swaps.push_back({random.Index(kDiskLayers), random.Index(kDiskExperts), random.Index(kDiskExperts)});
  for (int r = 0; r < ranks.count(); ++r) {
    Runner& runner = ranks.runner(r);
    if (runner.model().ContinueSwaps(runner.device())) (void)runner.model().BeginSwaps(swaps);
  }
}

TEST(DiskExperts, ThePlanAddsUp) {
  const EngineOptions options = ShortOfMemory(DiskNano(), 0.5);
  const MemoryPlan whole = PlanFor(DiskNano()), plan = PlanFor(options);
  ASSERT_FALSE(plan.experts_on_disk.empty());
  const int64_t on_host = SumOf(plan.experts_on_host), on_disk = SumOf(plan.experts_on_disk);
  EXPECT_NEAR(static_cast<double>(on_host + on_disk), kDiskLayers * kDiskExperts * 2 / 3.0, 1);
  EXPECT_NEAR(static_cast<double>(on_disk), kDiskLayers * kDiskExperts / 3.0, 2);
  const int64_t bytes = plan.disk_bytes / on_disk;
  EXPECT_EQ(plan.weight_bytes + plan.host_embedding_bytes + plan.host_expert_bytes + plan.disk_bytes,
            whole.weight_bytes);
  EXPECT_EQ(plan.host_expert_bytes, on_host * bytes);
  EXPECT_NEAR(plan.disk_bytes_per_token, static_cast<double>(kDiskChosen * on_disk * bytes) / kDiskExperts, 1);
  const auto [least, most] = std::minmax_element(plan.experts_on_disk.begin(), plan.experts_on_disk.end());
  EXPECT_LE(*most - *least, 1) << "places are enough for the layer that has most";
}

TEST(DiskExperts, AnyPartOfThemOnTheDiskGivesTheSameBits) {
  for (const char* device : {"cpu", "cpu*2"}) {
    const std::vector<float> want = SomeLogits(*LoadOrFail(DiskNano(device)));
    for (const double host : {0.6, 0.0}) {
      const EngineOptions options = ShortOfMemory(DiskNano(device), host);
      const MemoryPlan plan = PlanFor(options);
      EXPECT_EQ(SumOf(plan.experts_on_host) > 0, host > 0);
      const auto engine = LoadOrFail(options);
      ASSERT_NE(engine, nullptr);
      EXPECT_TRUE(SomeLogits(*engine) == want) << device << ", " << host;
      EXPECT_TRUE(SomeLogits(*engine) == want) << device << ", " << host << ", places are in use";
      const ExpertUse use = engine->expert_use().value();
      EXPECT_EQ(use.on_disk, SumOf(plan.experts_on_disk));
      EXPECT_EQ(use.chosen, static_cast<uint64_t>(2 * 60 * kDiskChosen * kDiskLayers));
      EXPECT_GT(use.disk_reads, use.on_disk) << "there are fewer places than experts";
      EXPECT_GE(use.disk_bytes, static_cast<double>(use.disk_reads));
      EXPECT_GT(use.disk_seconds, 0);
      EXPECT_LT(use.chosen_resident, use.chosen);
      EXPECT_EQ(use.fetched_bytes > 0, host > 0);
    }
  }
}

// An expert that is in a cache slot when a pass chooses it is not read again.
TEST(DiskExperts, WhatWasBroughtLastIsFound) {
  const auto engine = LoadOrFail(ShortOfMemory(DiskNano(), 0));
  ASSERT_NE(engine, nullptr);
  dynamic_cast<EngineImpl&>(*engine).repicker() = Repicker();
  const auto session = engine->NewSession().value();
  ASSERT_TRUE(session->Append(SomeTokens(1, 3, 4096), LogitRows::kNone, nullptr).ok());
  const ExpertUse first = engine->expert_use().value();
  const auto again = engine->NewSession().value();
  ASSERT_TRUE(again->Append(SomeTokens(1, 3, 4096), LogitRows::kNone, nullptr).ok());
  const ExpertUse second = engine->expert_use().value();
  ASSERT_GT(first.disk_reads, 0);
  EXPECT_EQ(second.disk_reads, first.disk_reads) << "one token's fit the places";
  EXPECT_EQ(second.chosen, 2 * first.chosen);
  EXPECT_EQ(second.chosen_resident - first.chosen_resident, first.chosen);
}

// Batches with every option, drafts, and sessions that continue from a snapshot (as the prefix cache does).
TEST(DiskExperts, BatchesDraftsAndSnapshotsKnowNothingOfThem) {
  for (const char* device : {"cpu", "cpu*2"}) {
    const auto whole = LoadOrFail(DiskNano(device));
    const std::vector<DraftWanted> wanted = EveryOption(3);
    const std::vector<DraftOutcome> plain = DraftedDecode(*whole).Run(wanted, nullptr, 0);
    const std::vector<float> behind = ExpectSnapshotGoesOn(*whole).logits;
    const auto engine = LoadOrFail(ShortOfMemory(DiskNano(device), 0.5));
    ASSERT_NE(engine, nullptr);
    dynamic_cast<EngineImpl&>(*engine).repicker() = Repicker();
    Random random(23);
    SwapSome(*engine, random);
    EXPECT_EQ(DraftedDecode(*engine).Differences(wanted, plain, std::make_unique<LookupDrafter>(), 5), "") << device;
    SwapSome(*engine, random);
    EXPECT_EQ(ExpectSnapshotGoesOn(*engine).logits, behind) << device;
    EXPECT_GT(engine->expert_use()->disk_reads, 0);
    EXPECT_GT(engine->expert_use()->moved_bytes, 0);
  }
}

// Every drafter with experts on the host or on the disk, on one rank and on two; after a prompt and after its snapshot.
TEST(DiskExperts, DraftersGiveTheSameTokens) {
  struct Case {
    const char* device;
    Speculate speculate;
    double host;
  };
  const std::vector<TokenId> prompt = {5, 900, 31, 7, 5, 900, 31, 7, 5, 900};
  const SamplingParams sampling{.temperature = 1, .seed = 5};
  const auto going_on = [&](Engine& engine) {
    const auto session = engine.NewSession().value();
    EXPECT_TRUE(session->Append(prompt, LogitRows::kNone, nullptr).ok());
    const auto from = engine.NewSession(*session->Snapshot().value()).value();
    const auto sampler = Sampler::Create(sampling, engine.info().vocab_size).value();
    std::vector<TokenId> ids;
    const DecodeItem item{.session = from.get(), .sampler = sampler.get(), .first = 31, .max_tokens = 12};
    EXPECT_TRUE(engine
                    .Decode({&item, 1},
                            [&](size_t, const SampledToken& token) {
                              ids.push_back(token.id);
                              return true;
                            })
                    .ok());
    return ids;
  };
  for (const Case& c :
       {Case{"cpu", Speculate::kMtp, 0.5}, Case{"cpu", Speculate::kDspark, 1}, Case{"cpu*2", Speculate::kLookup, 0.5},
        Case{"cpu*2", Speculate::kMtp, 1}, Case{"cpu*2", Speculate::kDspark, 0.5}}) {
    const std::string which = std::string(c.device) + ", " + std::to_string(static_cast<int>(c.speculate));
    EngineOptions options = DiskNano(c.device);
    const auto plain = LoadOrFail(options);
    const std::vector<TokenId> want = Generate(*plain, prompt, 24, sampling).ids, want_behind = going_on(*plain);
    options.drafts.speculate = c.speculate;
    options.drafts.threshold = 0;
    options = ShortOfMemory(options, c.host);
    EXPECT_EQ(PlanFor(options).experts_on_disk.empty(), c.host == 1);
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    const Generated run = Generate(*engine, prompt, 24, sampling);
    EXPECT_EQ(run.ids, want) << which;
    EXPECT_EQ(going_on(*engine), want_behind) << which;
    EXPECT_TRUE(c.speculate == Speculate::kLookup || engine->draft_counts().verifications > 0) << which;
    EXPECT_GT(engine->expert_use()->on_host, 0) << which;
  }
}

// An engine without experts on the disk reads snapshots of an engine with them, and the reverse.
TEST(DiskExperts, TheWeightsAreTheSameWhereverTheyLie) {
  const auto whole = LoadOrFail(DiskNano()), engine = LoadOrFail(ShortOfMemory(DiskNano(), 0.5));
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->SnapshotFingerprint().value(), whole->SnapshotFingerprint().value());
}

TEST(DiskExperts, RanksInSlicesDoWithoutThem) {
  EngineOptions options = ShortOfMemory(DiskNano("cpu*2"), 0);
  options.ranks.invariant = true;
  EXPECT_EQ(Engine::Load(options).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace dsv4::test
