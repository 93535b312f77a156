// Experts on the host that the CPU computes: close to the device's results; the counts; the refusals. The CPU takes the
// role of the device, with a memory limit.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsv4/experts.h"
#include "engine/drafts/drafts_fixture.h"
#include "engine/engine_impl.h"
#include "engine/memory/expert_places_fixture.h"
#include "support/agreement.h"
#include "support/random.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSplitLayers = 3, kSplitExperts = 16, kSplitChosen = 3, kSplitVocab = 4096;

// Nothing is rounded, so that sums in another order stay close. Six cache slots for a layer's sixteen experts.
EngineOptions SplitNano(ExpertCompute by, int64_t slots = 6) {
  return {.model_dir = "",
          .synthetic = {.shape = "nano", .num_layers = kSplitLayers},
          .num_threads = 2,
          .kv_dtype = KvDtype::kF32,
          .index_dtype = IndexDtype::kF32,
          .offload = {.expert_slots = slots, .expert_compute = by}};
}

std::unique_ptr<Engine> LoadSplit(const EngineOptions& options) {
  auto engine = LoadOrFail(options);
  if (engine != nullptr) dynamic_cast<EngineImpl&>(*engine).repicker() = Repicker();  // experts do not move
  return engine;
}

ExpertUse UseOf(Engine& engine) { return engine.expert_use().value(); }

// Only the order of sums differs: a few float32 units per layer, far below a change of an expert's choice.
void ExpectClose(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ExpectAgreement(what, Compare(got, want, kSplitVocab), 1e-4, 1);
}

TEST(ExpertCompute, LogitsAreCloseAndWhatTheCpuComputedIsCounted) {
  const auto plain = LoadSplit(SplitNano(ExpertCompute::kGpu));
  const std::vector<float> want = SomeLogits(*plain);
  const ExpertUse read = UseOf(*plain);
  EXPECT_EQ(read.cpu_experts, 0);
  EXPECT_EQ(read.cpu_rate, 0);
  for (const int64_t slots : {1, 6, 15}) {
    const auto engine = LoadSplit(SplitNano(ExpertCompute::kCpu, slots));
    ASSERT_NE(engine, nullptr);
    ExpectClose(SomeLogits(*engine), want, "cpu");
    const ExpertUse use = UseOf(*engine);
    EXPECT_EQ(use.on_host, kSplitLayers * (kSplitExperts - slots));
    EXPECT_EQ(use.chosen, static_cast<uint64_t>(60 * kSplitChosen * kSplitLayers)) << "choices are counted as before";
    EXPECT_GT(use.cpu_experts, 0);
    EXPECT_GT(use.cpu_seconds, 0);
    EXPECT_EQ(use.fetched_bytes, 0) << "nothing was left to read";
    const auto computed = static_cast<double>(use.cpu_experts * (use.host_bytes / use.on_host));
    if (slots == 6) {
      EXPECT_EQ(computed, read.fetched_bytes);
    }
  }
}

TEST(ExpertCompute, AutoMeasuresAndStaysClose) {
  const std::vector<float> want = SomeLogits(*LoadSplit(SplitNano(ExpertCompute::kGpu)));
  const auto engine = LoadSplit(SplitNano(ExpertCompute::kAuto));
  ASSERT_NE(engine, nullptr);
  ExpectClose(SomeLogits(*engine), want, "auto");
  const ExpertUse use = UseOf(*engine);
  EXPECT_GT(use.cpu_rate, 0);
  EXPECT_GT(use.link_rate, 0);
  const double both = use.fetched_bytes + static_cast<double>(use.cpu_experts * (use.host_bytes / use.on_host));
  EXPECT_GT(both, 0);
}

// A row's bits do not depend on the other rows of its pass while experts do not move: drafts change no text.
TEST(ExpertCompute, BatchesAndDraftsGiveTheTextOfOneByOne) {
  const auto engine = LoadSplit(SplitNano(ExpertCompute::kCpu));
  ASSERT_NE(engine, nullptr);
  const std::vector<DraftWanted> wanted = EveryOption(3);
  const std::vector<DraftOutcome> plain = DraftedDecode(*engine).Run(wanted, nullptr, 0);
  for (const DraftOutcome& outcome : plain) EXPECT_FALSE(outcome.ids.empty());
  EXPECT_EQ(DraftedDecode(*engine).Differences(wanted, plain, std::make_unique<LookupDrafter>(), 5), "");
  EXPECT_FALSE(ExpectSnapshotGoesOn(*engine).logits.empty());
  EXPECT_GT(UseOf(*engine).cpu_experts, 0);
}

// Up to the maximum rows of a decode step, the CPU computes all rows, in one pass or in several.
TEST(ExpertCompute, RowsOfADecodeStepDependOnNoOthers) {
  const std::vector<TokenId> tokens = SomeTokens(kMaxDecodeRows, 9, kSplitVocab);
  EngineOptions options = SplitNano(ExpertCompute::kCpu);
  const std::vector<float> whole = AllLogits(*LoadSplit(options), tokens);
  for (const int64_t chunk : {1, 37, 65}) {
    options.prefill_chunk = chunk;
    const auto engine = LoadSplit(options);
    ASSERT_NE(engine, nullptr);
    EXPECT_TRUE(AllLogits(*engine, tokens) == whole) << "chunk " << chunk;
    EXPECT_GT(UseOf(*engine).cpu_experts, 0);
    EXPECT_EQ(UseOf(*engine).fetched_bytes, 0);
  }
}

// Passes with more rows than a decode step read the host's experts as without this option.
TEST(ExpertCompute, PromptsAreNotTheCpus) {
  const std::vector<TokenId> tokens = SomeTokens(kMaxDecodeRows + 1, 9, kSplitVocab);
  const std::vector<float> want = AllLogits(*LoadSplit(SplitNano(ExpertCompute::kGpu)), tokens);
  const auto engine = LoadSplit(SplitNano(ExpertCompute::kCpu));
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(AllLogits(*engine, tokens) == want);
  EXPECT_EQ(UseOf(*engine).cpu_experts, 0);
  EXPECT_GT(UseOf(*engine).fetched_bytes, 0);
}

// Experts that swap between steps: each is computed once, wherever it is.
TEST(ExpertCompute, ExpertsThatChangePlacesStayClose) {
  const std::vector<float> want = SomeLogits(*LoadSplit(SplitNano(ExpertCompute::kGpu)));
  const auto engine = LoadSplit(SplitNano(ExpertCompute::kCpu));
  ASSERT_NE(engine, nullptr);
  Runner& runner = dynamic_cast<EngineImpl&>(*engine).runner();
  Random random(17);
  int64_t made = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<ExpertSwap> swaps;
    for (int i = 0; i < 60; ++i)
      swaps.push_back({random.Index(kSplitLayers), random.Index(kSplitExperts), random.Index(kSplitExperts)});
    made += runner.model().BeginSwaps(swaps);
    ExpectClose(SomeLogits(*engine), want, "beside swaps");
    (void)runner.model().ContinueSwaps(runner.device());
  }
  EXPECT_GT(made, 0);
}

TEST(ExpertCompute, IsRefusedWhereItMakesNoSense) {
  for (const ExpertCompute by : {ExpertCompute::kCpu, ExpertCompute::kAuto}) {
    const Status cpu = Engine::Load({.model_dir = DSV4_SOURCE_DIR "/models/nano", .offload = {.expert_compute = by}})
                           .status();
    EXPECT_EQ(cpu.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(cpu.message(), HasSubstr("--device cuda"));
    for (const char* device : {"cuda:0,1", "cuda:0*2"}) {
      const Status ranks = Engine::Load({.model_dir = "x", .device = device, .offload = {.expert_compute = by}})
                               .status();
      EXPECT_EQ(ranks.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(ranks.message(), HasSubstr("2 ranks"));
    }
  }
  EngineOptions invariant = SplitNano(ExpertCompute::kCpu);
  invariant.batch_invariant = true;
  EXPECT_THAT(Engine::Load(invariant).status().message(), HasSubstr("--expert-compute gpu"));
  // All experts fit: nothing changes.
  EngineOptions options = SplitNano(ExpertCompute::kCpu, kSplitExperts);
  const std::vector<float> want = SomeLogits(*LoadSplit(SplitNano(ExpertCompute::kGpu, 0)));
  EXPECT_TRUE(SomeLogits(*LoadSplit(options)) == want);
}

// KV files are for engines with the same numerics. For decode steps, which depend on the placement, this is not
// required.
TEST(ExpertCompute, FilesOfKvSayWhoComputes) {
  const std::string plain = LoadSplit(SplitNano(ExpertCompute::kGpu))->SnapshotFingerprint().value();
  const std::string cpu = LoadSplit(SplitNano(ExpertCompute::kCpu))->SnapshotFingerprint().value();
  EXPECT_THAT(plain, ::testing::Not(HasSubstr("on the CPU")));
  EXPECT_THAT(cpu, HasSubstr("experts of the host on the CPU"));
}

}  // namespace
}  // namespace dsv4::test
