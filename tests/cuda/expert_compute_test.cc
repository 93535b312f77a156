// Experts in host memory that the CPU computes while the GPU works: prompts keep their bits, decode steps stay close
// (docs/dev/numerics.md), and no wait is endless.
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include "dsv4/experts.h"
#include "dsv4/sampling.h"
#include "engine/engine_impl.h"
#include "support/agreement.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/host_experts.h"
#include "support/random.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

constexpr int64_t kFlashVocab = 129280;

// Four layers of Flash; a quarter of the 256 experts of each layer is on the host. Only inputs of products and
// attention's operands are rounded.
EngineOptions SomeOnTheHost(ExpertCompute by, SyntheticExperts experts = SyntheticExperts::kNvfp4Cast) {
  EngineOptions options{.model_dir = "",
                        .synthetic = {.shape = "flash", .num_layers = 4, .experts = experts},
                        .device = "cuda",
                        .kv_dtype = KvDtype::kF32,
                        .index_dtype = IndexDtype::kF32};
  options.offload.kv_room = int64_t{256} << 20;
  options.prefill_chunk = 2048;
  options.offload.expert_slots = 192;
  options.offload.expert_compute = by;
  return options;
}

std::unique_ptr<Engine> LoadStill(const EngineOptions& options) {
  auto engine = LoadOrFail(options);
  if (engine != nullptr) dynamic_cast<EngineImpl&>(*engine).repicker() = Repicker();  // experts do not move
  return engine;
}

struct SomeLogitsOf {
  std::vector<float> prompts, steps;
};

// Prompts of three regimes (the first has rows of a decode step), then steps of one and of three rows.
SomeLogitsOf PromptsAndSteps(Engine& engine, bool together = true) {
  SomeLogitsOf all;
  std::vector<float> logits;
  std::vector<std::unique_ptr<Session>> sessions;
  for (const int64_t length : {100, 700, 1500}) {
    sessions.push_back(engine.NewSession().value());
    const Status status = sessions.back()->Append(SomeTokens(length, static_cast<uint64_t>(length), kFlashVocab),
                                                  LogitRows::kLast, &logits);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float>& of = length <= kMaxDecodeRows ? all.steps : all.prompts;
    of.insert(of.end(), logits.begin(), logits.end());
  }
  for (int step = 0; step < 8; ++step) {
    const std::vector<TokenId> ids = SomeTokens(3, static_cast<uint64_t>(step) + 5, kFlashVocab);
    std::vector<std::vector<float>> rows(3);
    std::vector<StepItem> items;
    for (size_t i = 0; i < (step % 2 == 0 ? 3u : 1u); ++i)
      items.push_back({.session = sessions[i].get(), .tokens = {&ids[i], 1}, .logits = &rows[i]});
    if (together) {
      EXPECT_TRUE(engine.Step(items).ok());
    } else {
      for (const StepItem& item : items) EXPECT_TRUE(engine.Step({&item, 1}).ok());
    }
    for (const std::vector<float>& row : rows) all.steps.insert(all.steps.end(), row.begin(), row.end());
  }
  return all;
}

TEST(CudaExpertCompute, LogitsAreCloseAndPromptsKeepTheirBits) {
  DSV4_GPU_OR_SKIP();
  using E = SyntheticExperts;
  for (const E experts : {E::kNvfp4Cast, E::kNvfp4, E::kMxfp4}) {
    const SomeLogitsOf want = PromptsAndSteps(*LoadStill(SomeOnTheHost(ExpertCompute::kGpu, experts)));
    for (const ExpertCompute by : {ExpertCompute::kCpu, ExpertCompute::kAuto}) {
      if (by == ExpertCompute::kAuto && experts != E::kNvfp4Cast) continue;
      const auto engine = LoadStill(SomeOnTheHost(by, experts));
      ASSERT_NE(engine, nullptr);
      const SomeLogitsOf got = PromptsAndSteps(*engine);
      EXPECT_TRUE(got.prompts == want.prompts);
      // Inputs of two BF16 terms against float32: 1e-5 (docs/dev/numerics.md, 3.1); a row may have chosen other
      // experts.
      const Agreement agreement = Compare(got.steps, want.steps, kFlashVocab);
      EXPECT_LE(agreement.median_row, 1e-4);
      EXPECT_GE(agreement.arg_max, 0.9);
      const ExpertUse use = engine->expert_use().value();
      std::printf("%d: %lld experts in %.3f s; CPU %.1f GB/s, link %.1f GB/s\n", static_cast<int>(by),
                  static_cast<long long>(use.cpu_experts), use.cpu_seconds, use.cpu_rate / 1e9, use.link_rate / 1e9);
      if (by == ExpertCompute::kCpu) {
        EXPECT_GT(use.cpu_experts, 0);
      }
    }
  }
}

// While experts do not move, a row has the same bits as alone.
TEST(CudaExpertCompute, RowsDoNotDependOnTheirBatch) {
  DSV4_GPU_OR_SKIP();
  EngineOptions options = SomeOnTheHost(ExpertCompute::kCpu);
  const auto engine = LoadStill(options);
  ASSERT_NE(engine, nullptr);
  const SomeLogitsOf together = PromptsAndSteps(*engine), alone = PromptsAndSteps(*engine, /*together=*/false);
  EXPECT_TRUE(BitEqual(together.steps, alone.steps));
  options.prefill_chunk = 37;
  EXPECT_TRUE(BitEqual(PromptsAndSteps(*LoadStill(options)).steps, together.steps));
}

TEST(CudaExpertCompute, BesideSwapsAndDraftsEveryTokenComes) {
  DSV4_GPU_OR_SKIP();
  for (const auto& [speculate, by] :
       {std::pair(Speculate::kOff, ExpertCompute::kCpu), std::pair(Speculate::kLookup, ExpertCompute::kAuto)}) {
    EngineOptions options = SomeOnTheHost(by);
    options.offload.expert_slots = 128;
    options.drafts.speculate = speculate;
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    Random random(31);
    for (const std::vector<TokenId>& ids : DecodedTokens(*engine, 100, [&] { (void)SwapOn(*engine, random); }))
      EXPECT_EQ(ids.size(), 100u);
    EXPECT_GT(engine->expert_use()->moved_bytes, 0);
  }
}

// With experts in one place, drafts change no token.
TEST(CudaExpertCompute, DraftsGiveTheSameTokens) {
  DSV4_GPU_OR_SKIP();
  EngineOptions options = SomeOnTheHost(ExpertCompute::kCpu);
  const std::vector<std::vector<TokenId>> want = DecodedTokens(*LoadStill(options), 100, [] {});
  options.drafts.speculate = Speculate::kLookup;
  EXPECT_EQ(DecodedTokens(*LoadStill(options), 100, [] {}), want);
}

}  // namespace
}  // namespace dsv4::test
