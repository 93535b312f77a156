// Experts that the GPU reads in host memory: the same bits as in its own memory.
#include <algorithm>
#include <functional>

#include "dsv4/experts.h"
#include "dsv4/inspect.h"
#include "dsv4/sampling.h"
#include "engine/engine_impl.h"
#include "io/test_files.h"
#include "support/cuda_mirror.h"
#include "support/host_experts.h"
#include "support/random.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

EngineOptions FourFlashLayers(bool fp8_dense, const std::string& device) {
  EngineOptions options{
      .model_dir = "", .synthetic = {.shape = "flash", .num_layers = 4, .fp8_dense = fp8_dense}, .device = device};
  options.offload.kv_room = int64_t{256} << 20;
  options.prefill_chunk = 2048;
  return options;
}

// A prompt of every regime, then steps of one token and of several sequences.
std::vector<float> LogitsOfRegimes(Engine& engine) {
  std::vector<float> all, logits;
  std::vector<std::unique_ptr<Session>> sessions;
  for (const int64_t length : {100, 700, 3000}) {
    sessions.push_back(engine.NewSession().value());
    const Status status = sessions.back()->Append(SomeTokens(length, static_cast<uint64_t>(length), 129280),
                                                  LogitRows::kLast, &logits);
    EXPECT_TRUE(status.ok()) << status.message();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  for (int step = 0; step < 8; ++step) {
    const std::vector<TokenId> ids = SomeTokens(3, static_cast<uint64_t>(step) + 5, 129280);
    std::vector<std::vector<float>> rows(3);
    std::vector<StepItem> items;
    for (size_t i = 0; i < (step % 2 == 0 ? 3u : 1u); ++i)
      items.push_back({.session = sessions[i].get(), .tokens = {&ids[i], 1}, .logits = &rows[i]});
    const Status status = engine.Step(items);
    EXPECT_TRUE(status.ok()) << status.message();
    for (const std::vector<float>& row : rows) all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TEST(CudaHostExperts, AnyPartOfThemOnTheHostGivesTheSameBits) {
  DSV4_GPU_OR_SKIP();
  for (const auto& [fp8_dense, device] :
       {std::pair(false, "cuda"), std::pair(true, "cuda"), std::pair(false, "cuda:0*2")}) {
    EngineOptions options = FourFlashLayers(fp8_dense, device);
    MemoryPlan whole{};
    options.on_plan = [&](const MemoryPlan& plan) { whole = plan; };
    std::vector<float> want;
    {
      const auto engine = LoadOrFail(options);
      ASSERT_NE(engine, nullptr);
      want = LogitsOfRegimes(*engine);
    }
    ASSERT_TRUE(whole.experts_on_host.empty());
    const TempDir temp;
    Random random(3);
    ExpertCounts counts{.num_layers = 4, .num_experts = 256, .chosen = {}};
    for (int i = 0; i < 4 * 256; ++i) counts.chosen.push_back(static_cast<uint64_t>(random.Index(1000)));
    ASSERT_TRUE(WriteExpertCounts(temp / "counts", counts).ok());
    options.offload.expert_counts = temp / "counts";
    for (const int64_t gigabytes : {16, 12}) {
      options.offload.gpu_memory = gigabytes << 30;
      MemoryPlan plan{};
      options.on_plan = [&](const MemoryPlan& p) { plan = p; };
      const auto engine = LoadOrFail(options);
      ASSERT_NE(engine, nullptr);
      EXPECT_FALSE(plan.experts_on_host.empty());
      EXPECT_TRUE(LogitsOfRegimes(*engine) == want) << device << ", " << gigabytes << " GiB, fp8_dense " << fp8_dense;
      const ExpertUse use = engine->expert_use().value();
      EXPECT_TRUE(use.counted);
      EXPECT_GT(use.on_host, 0);
      EXPECT_GT(use.fetched_bytes, 0);
      EXPECT_EQ(use.chosen, 4u * 6 * (100 + 700 + 3000 + 4 * 3 + 4));
      EXPECT_LT(use.chosen_resident, use.chosen);
    }
  }
}

// A long prompt needs nearly all experts: bulk copies load the host's experts, and they are counted.
TEST(CudaHostExperts, PromptsBringThemToTheGpu) {
  DSV4_GPU_OR_SKIP();
  for (const char* device : {"cuda", "cuda:0*2"}) {
    EngineOptions options = FourFlashLayers(/*fp8_dense=*/false, device);
    options.offload.gpu_memory = int64_t{12} << 30;
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    const auto session = engine->NewSession().value();
    ASSERT_TRUE(session->Append(SomeTokens(2048, 1, 129280), LogitRows::kNone, nullptr).ok());
    const ExpertUse use = engine->expert_use().value();
    EXPECT_GT(use.host_bytes, 0) << device;
    EXPECT_GE(use.fetched_bytes, static_cast<double>(use.host_bytes)) << device;
  }
}

// Recorded steps, prompts that fetch experts, and random swaps, alternating.
TEST(CudaHostExperts, ExpertsThatChangePlacesGiveTheSameBits) {
  DSV4_GPU_OR_SKIP();
  for (const char* device : {"cuda", "cuda:0*2"}) {
    EngineOptions options = FourFlashLayers(/*fp8_dense=*/false, device);
    const std::vector<float> want = LogitsOfRegimes(*LoadOrFail(options));
    options.offload.gpu_memory = int64_t{12} << 30;
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    Random random(17);
    for (int round = 0; round < 12; ++round) {
      (void)SwapOn(*engine, random);
      EXPECT_TRUE(LogitsOfRegimes(*engine) == want) << device << ", round " << round;
    }
    EXPECT_GT(engine->expert_use()->swaps, kMostSwapsAtOnce) << device;
  }
}

// Two slots per layer for 256 experts: experts are swapped while steps are queued and run.
TEST(CudaHostExperts, TwoSlotsALayerUnderABatchGiveTheSameTokens) {
  DSV4_GPU_OR_SKIP();
  for (const char* device : {"cuda", "cuda:0*2"}) {
    EngineOptions options = FourFlashLayers(/*fp8_dense=*/false, device);
    const std::vector<std::vector<TokenId>> want = DecodedTokens(*LoadOrFail(options), 200, [] {});
    options.offload.expert_slots = 2;
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    Random random(31);
    int64_t begun = 0;
    EXPECT_EQ(DecodedTokens(*engine, 200, [&] { begun += SwapOn(*engine, random); }), want) << device;
    EXPECT_GT(begun, 3 * kMostSwapsAtOnce) << device;  // many rounds: their copies take about 25 of these steps
    const ExpertUse use = engine->expert_use().value();
    EXPECT_GT(use.moved_bytes, 0);
    EXPECT_LT(use.chosen_resident, use.chosen / 4) << device;
  }
}

TEST(CudaHostExperts, AFilesExpertsArriveOnTheHostToo) {
  DSV4_GPU_OR_SKIP();
  const TempDir temp;
  const EngineOptions made{.model_dir = "", .synthetic = {.shape = "nano", .seed = 42}, .device = "cuda"};
  ASSERT_TRUE(WriteSyntheticCheckpoint(made, temp / "m").ok());
  EngineOptions options{.model_dir = temp / "m", .device = "cuda"};
  MemoryPlan plan{};
  options.on_plan = [&](const MemoryPlan& p) { plan = p; };
  const std::vector<float> want = LogitsOfModel(options);
  ASSERT_FALSE(want.empty());
  // Reserves enough memory for KV that experts must leave the GPU.
  const int64_t embedding = int64_t{4096} * 256 * 2;
  options.offload.kv_room = plan.available_bytes - plan.weight_bytes - plan.scratch_bytes - plan.activation_bytes +
                            2 * embedding;
  EXPECT_TRUE(LogitsOfModel(options) == want);
  EXPECT_FALSE(plan.experts_on_host.empty());
  EXPECT_EQ(plan.host_embedding_bytes, embedding);
}

TEST(CudaHostExperts, TheDeviceBehavesAsIfItWereSmaller) {
  DSV4_GPU_OR_SKIP();
  const auto device = Device::Open("cuda").value();
  device->LimitMemory(int64_t{8} << 30);
  const int64_t free = device->free_bytes();
  EXPECT_LE(free, int64_t{8} << 30);
  EXPECT_EQ(device->Allocate(free + 1), nullptr);
  void* half = device->Allocate(free / 2);
  ASSERT_NE(half, nullptr);
  EXPECT_LE(device->free_bytes(), free - free / 2);
  device->Free(half);
  EXPECT_TRUE(device->Synchronize().ok());
}

}  // namespace
}  // namespace dsv4::test
