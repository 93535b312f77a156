// The engine on a GPU against the CPU engine and the float64 reference.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "support/agreement.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/decode_masks.h"
#include "support/fixture.h"
#include "support/fixture_agreement.h"

namespace dsv4::test {
namespace {

class CudaFixture : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, CudaFixture,
                         testing::Values("mini-bf16", "flash-nvfp4", "pro-official", "flash-all-nvfp4"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Only the inputs of matrix products (docs/dev/numerics.md, 3.1) and of attention are rounded.
EngineOptions GpuOptions(const std::string& dir) {
  EngineOptions options = ExactOptions(dir);
  options.device = "cuda";
  options.activation_dtype = ActivationDtype::kNative;
  return options;
}

TEST_P(CudaFixture, LogitsAgreeWithTheReference) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  auto engine = LoadOrFail(GpuOptions(dir));
  ASSERT_NE(engine, nullptr);
  ExpectFixtureAgrees(*engine, dir);
  const int64_t v = engine->info().vocab_size;
  EngineOptions chunked = GpuOptions(dir);
  chunked.prefill_chunk = 37;
  engine = LoadOrFail(chunked);
  ASSERT_NE(engine, nullptr);
  ExpectAgreement("chunks of 37", Compare(AllLogits(*engine, ids.i32), reference.f32, v), 0.01, 0.98);
}

TEST_P(CudaFixture, UnroundedInputsAreNearlyExact) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  EngineOptions options = GpuOptions(dir);
  options.activation_dtype = ActivationDtype::kF32;
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  ExpectAgreement("f32", Compare(AllLogits(*engine, ids.i32), reference.f32, engine->info().vocab_size), 1e-4, 0.999);
}

TEST_P(CudaFixture, AsTrainedRoundingAgreesWithTheSimulatedReference) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  EngineOptions options;
  options.model_dir = dir;
  options.device = "cuda";
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  ExpectAgreesAsTrained(*engine, dir);
}

// With default flags: the same bits whole, in chunks and in a batch of 32.
TEST_P(CudaFixture, APromptHasTheSameBitsInChunksAndAmongOthers) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
  EngineOptions options;
  options.model_dir = dir;
  options.device = "cuda";
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const std::vector<float> alone = AllLogits(*engine, prompt);
  for (const int64_t chunk : {37, 512, 4096}) {
    EngineOptions chunked = options;
    chunked.prefill_chunk = chunk;
    auto second = LoadOrFail(chunked);
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(AllLogits(*second, prompt), alone) << "chunks of " << chunk;
  }
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<float>> logits(32);
  std::vector<StepItem> items;
  for (size_t i = 0; i < 32; ++i) {
    sessions.push_back(std::move(engine->NewSession()).value());
    const std::span<const TokenId> tokens = std::span(prompt).first(i == 17 ? prompt.size() : 1 + i * 5);
    items.push_back({.session = sessions[i].get(),
                     .tokens = tokens,
                     .rows = LogitRows::kAll,
                     .logits = &logits[i],
                     .prompt_tokens = static_cast<int64_t>(tokens.size())});
  }
  ASSERT_TRUE(engine->Step(items).ok());
  EXPECT_EQ(logits[17], alone) << "in a batch of 32";
}

// In batch-invariant mode also in decode steps.
TEST_P(CudaFixture, BatchInvariantModeGivesTheSameBits) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids");
  EngineOptions options;
  options.model_dir = dir;
  options.device = "cuda";
  options.batch_invariant = true;
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const size_t t = std::min<size_t>(ids.i32.size(), 200);
  const std::span<const TokenId> prompt(ids.i32.data(), t);
  const std::vector<float> alone = AllLogits(*engine, prompt);
  EXPECT_EQ(AllLogits(*engine, prompt, 127), alone) << "decode from 127";
  EngineOptions chunked = options;
  chunked.prefill_chunk = 37;
  auto second = LoadOrFail(chunked);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(AllLogits(*second, prompt), alone) << "chunks of 37";
}

// By default: decode steps of one sequence do not depend on the other sequences.
TEST_P(CudaFixture, DecodeDoesNotDependOnTheBatch) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids");
  EngineOptions options;
  options.model_dir = dir;
  options.device = "cuda";
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  constexpr size_t kBatch = 32, kPrompt = 100, kSteps = 8;
  const std::span<const TokenId> prompt(ids.i32.data(), kPrompt);
  std::vector<float> alone, row;
  {
    auto session = std::move(engine->NewSession()).value();
    ASSERT_TRUE(session->Append(prompt, LogitRows::kNone, nullptr).ok());
    for (size_t i = 0; i < kSteps; ++i) {
      ASSERT_TRUE(session->Append({&ids.i32[kPrompt + i], 1}, LogitRows::kLast, &row).ok());
      alone.insert(alone.end(), row.begin(), row.end());
    }
  }
  std::vector<std::unique_ptr<Session>> sessions;
  for (size_t i = 0; i < kBatch; ++i) {
    sessions.push_back(std::move(engine->NewSession()).value());
    ASSERT_TRUE(sessions[i]->Append(i == 5 ? prompt : prompt.first(3 * i + 1), LogitRows::kNone, nullptr).ok());
  }
  std::vector<float> together;
  for (size_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<float>> rows(kBatch);
    std::vector<TokenId> next(kBatch);
    std::vector<StepItem> items;
    for (size_t i = 0; i < kBatch; ++i) {
      next[i] = i == 5 ? ids.i32[kPrompt + step] : ids.i32[i + step];
      items.push_back({.session = sessions[i].get(), .tokens = {&next[i], 1}, .logits = &rows[i]});
    }
    ASSERT_TRUE(engine->Step(items).ok());
    together.insert(together.end(), rows[5].begin(), rows[5].end());
  }
  EXPECT_EQ(together, alone);
}

TEST_P(CudaFixture, DecodeDrawsWhatIsAllowed) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids");
  EngineOptions options;
  options.model_dir = dir;
  options.device = "cuda";
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  ExpectMaskedDecodeIsStepAndSample(*engine, ids.i32);
}

}  // namespace
}  // namespace dsv4::test
