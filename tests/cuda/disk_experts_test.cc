// Experts that stay in a checkpoint's files, and drafts with experts that are not on the GPU: the bits and tokens of an
// engine that has all of them on the GPU.
#include <numeric>

#include "dsv4/experts.h"
#include "dsv4/inspect.h"
#include "engine/drafts/model_drafts_fixture.h"
#include "io/test_files.h"
#include "support/cuda_mirror.h"
#include "support/fixture.h"
#include "support/random.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

constexpr int64_t kProgramBytes = int64_t{1} << 30;  // bytes that the plan leaves to the program

MemoryPlan PlanOfFiles(const EngineOptions& options) {
  auto description = Inspect(options);
  EXPECT_TRUE(description.ok()) << description.status().message();
  return description->plan;
}

// Limits host memory to a part of the experts that leave the GPU.
EngineOptions WithHostFor(EngineOptions options, double part) {
  const MemoryPlan away = PlanOfFiles(options);
  EXPECT_GT(away.host_expert_bytes, 0);
  EXPECT_TRUE(away.experts_on_disk.empty());
  options.offload.host_memory = away.host_embedding_bytes + away.devices * away.host_staging_bytes + kProgramBytes +
                                static_cast<int64_t>(static_cast<double>(away.host_expert_bytes) * part * 8 / 7);
  return options;
}

// Reserves as much memory for KV as makes `bytes` of experts leave the GPU, and limits host memory to a part of them.
EngineOptions WithRoomFor(EngineOptions options, int64_t bytes, double host) {
  MemoryPlan all = PlanOfFiles(options);
  options.offload.kv_room = all.available_bytes / all.ranks;
  all = PlanOfFiles(options);  // everything that can leave has left; the buffers for copies of experts exist
  options.offload.kv_room = (all.available_bytes - all.weight_bytes - all.scratch_bytes - all.collective_bytes -
                             all.activation_bytes - all.kv_fixed_bytes - (all.host_expert_bytes - bytes)) /
                            all.ranks;
  return WithHostFor(options, host);
}

TEST(CudaDiskExperts, AFilesExpertsStayThere) {
  DSV4_GPU_OR_SKIP();
  const TempDir temp;
  const EngineOptions made{.model_dir = "", .synthetic = {.shape = "nano", .seed = 42}, .device = "cuda"};
  ASSERT_TRUE(WriteSyntheticCheckpoint(made, temp / "m").ok());
  for (const char* device : {"cuda", "cuda:0*2"}) {
    EngineOptions options{.model_dir = temp / "m", .device = device};
    const std::vector<float> want = LogitsOfModel(options);
    ASSERT_FALSE(want.empty());
    for (const double host : {0.5, 0.0}) {
      MemoryPlan plan{};
      EngineOptions less = WithRoomFor(options, int64_t{4} << 20, host);
      less.on_plan = [&](const MemoryPlan& p) { plan = p; };
      EXPECT_TRUE(LogitsOfModel(less) == want) << device << ", " << host;
      EXPECT_FALSE(plan.experts_on_disk.empty()) << device << ", " << host;
      EXPECT_GT(plan.disk_rate, 0);
      EXPECT_EQ(plan.host_expert_bytes > 0, host > 0) << device;
    }
  }
}

// Batches and single tokens, repeated: few cache slots for many experts.
TEST(CudaDiskExperts, StepsGiveTheSameBits) {
  DSV4_GPU_OR_SKIP();
  const EngineOptions options{.model_dir = DSV4_SOURCE_DIR "/models/nano", .device = "cuda"};
  const auto rows_of = [](Engine& engine) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<float> all;
    for (int i = 0; i < 5; ++i) sessions.push_back(engine.NewSession().value());
    for (uint64_t step = 0; step < 30; ++step) {
      const std::vector<TokenId> ids = SomeTokens(5, step + 1, 4096);
      std::vector<float> logits[5];
      std::vector<StepItem> items;
      for (size_t i = 0; i < (step % 2 == 0 ? 5u : 1u); ++i)
        items.push_back({.session = sessions[i].get(), .tokens = {&ids[i], 1}, .logits = &logits[i]});
      EXPECT_TRUE(engine.Step(items).ok());
      for (const std::vector<float>& row : logits) all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  };
  const auto all = LoadOrFail(options);
  ASSERT_NE(all, nullptr);
  const std::vector<float> want = rows_of(*all);
  const auto engine = LoadOrFail(WithRoomFor(options, int64_t{4} << 20, 0.3));
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(rows_of(*engine) == want);
  const ExpertUse use = engine->expert_use().value();
  EXPECT_GT(use.on_disk, 0);
  EXPECT_GT(use.disk_reads, use.on_disk);
  EXPECT_GT(use.disk_seconds, 0);
}

// Rounds of drafts: recorded on the GPU, or, with experts on disk, queued.
TEST(CudaHostExperts, DraftsGiveTheSameTokens) {
  DSV4_GPU_OR_SKIP();
  for (const auto& [name, speculate] : {std::pair{"flash-mtp", Speculate::kMtp},
                                        {"flash-dspark", Speculate::kDspark},
                                        {"flash-mtp", Speculate::kLookup}}) {
    DSV4_FIXTURE_OR_SKIP(dir, name);
    const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
    const SamplingParams sampling{.temperature = 0.8f, .top_k = 40, .seed = 7};
    for (const char* device : {"cuda", "cuda:0*2"}) {
      EngineOptions options{.model_dir = dir, .device = device};
      const std::vector<TokenId> want = Generate(*LoadOrFail(options), prompt, 40, sampling).ids;
      options.drafts.speculate = speculate;
      options.drafts.threshold = 0;
      options.offload.expert_slots = 5;  // of 8 experts; the GPU has free memory for many such models
      for (const double host : {1.0, 0.0}) {
        const auto engine = LoadOrFail(WithHostFor(options, host));
        ASSERT_NE(engine, nullptr);
        const Generated run = Generate(*engine, prompt, 40, sampling);
        EXPECT_EQ(run.ids, want) << name << ", " << device << ", " << host;
        const ExpertUse use = engine->expert_use().value();
        EXPECT_GT(host > 0 ? use.on_host : use.on_disk, 0) << name << ", " << device;
        EXPECT_TRUE(speculate == Speculate::kLookup || !run.verified.empty()) << name;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
