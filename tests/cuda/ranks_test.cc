// The engine with several ranks: on one GPU, ordered by events, and on several GPUs, by words.
#include "engine/ranks/ranks.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>

#include "base/env.h"
#include "base/str.h"
#include "dsv4/inspect.h"
#include "dsv4/sampling.h"
#include "io/test_files.h"
#include "support/agreement.h"
#include "support/cuda_mirror.h"
#include "support/fixture.h"
#include "support/fixture_agreement.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

constexpr const char *kOneGpu = "cuda:0*2", *kTwoGpus = "cuda:0,1";
constexpr const char *kOneGpuForFour = "cuda:0*4", *kOneGpuForEight = "cuda:0*8";
constexpr const char *kFourGpus = "cuda:0-3", *kEightGpus = "cuda:0-7";

// Before the first CUDA call, which other tests of this program make: see base/env.h.
[[maybe_unused]] const bool kKernelsAreLoadedAtOnce = (LoadKernelsAtOnce(), true);

int GpusOf(const std::string& device) {
  return device == kTwoGpus ? 2 : device == kFourGpus ? 4 : device == kEightGpus ? 8 : 1;
}

#define DSV4_GPUS_OR_SKIP(device) \
  DSV4_GPU_OR_SKIP();             \
  if (!HasGpus(GpusOf(device))) GTEST_SKIP() << "needs " << GpusOf(device) << " GPUs"

std::string NameOfDevice(const std::string& device) {
  const auto gpus = [](int count) {
    return count == 1 ? "OneGpu" : count == 2 ? "TwoGpus" : count == 4 ? "FourGpus" : "EightGpus";
  };
  return StrCat(gpus(GpusOf(device)), device == kOneGpuForFour    ? "ForFour"
                                      : device == kOneGpuForEight ? "ForEight"
                                                                  : "");
}

EngineOptions RankOptions(const std::string& dir, const std::string& device) {
  EngineOptions options = ExactOptions(dir);
  options.device = device;
  options.activation_dtype = ActivationDtype::kNative;
  options.ranks.check = true;
  return options;
}

EngineOptions NanoOnRanks(const std::string& device) {
  EngineOptions options;
  options.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano";
  options.device = device;
  return options;
}

using RanksCase = std::tuple<const char*, const char*>;  // fixture, device

std::string NameOfCase(const testing::TestParamInfo<RanksCase>& instance) {
  std::string name = std::get<0>(instance.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return StrCat(name, "_", NameOfDevice(std::get<1>(instance.param)));
}

class CudaRanks : public testing::TestWithParam<RanksCase> {};
INSTANTIATE_TEST_SUITE_P(All, CudaRanks,
                         testing::Combine(testing::Values("mini-bf16", "flash-nvfp4", "pro-official",
                                                          "flash-all-nvfp4"),
                                          testing::Values(kOneGpu, kTwoGpus)),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(ForEight, CudaRanks,
                         testing::Combine(testing::Values("flash-8-groups"),
                                          testing::Values(kOneGpu, kOneGpuForFour, kOneGpuForEight, kTwoGpus, kFourGpus,
                                                          kEightGpus)),
                         NameOfCase);

TEST_P(CudaRanks, LogitsAgreeWithTheReference) {
  const auto [fixture, device] = GetParam();
  DSV4_GPUS_OR_SKIP(device);
  DSV4_FIXTURE_OR_SKIP(dir, fixture);
  const auto engine = LoadOrFail(RankOptions(dir, device));
  ASSERT_NE(engine, nullptr);
  ExpectFixtureAgrees(*engine, dir);
  EXPECT_TRUE(engine->health().ok()) << engine->health().message();
}

TEST_P(CudaRanks, AsTrainedRoundingAgreesWithTheSimulatedReference) {
  const auto [fixture, device] = GetParam();
  DSV4_GPUS_OR_SKIP(device);
  DSV4_FIXTURE_OR_SKIP(dir, fixture);
  EngineOptions options;
  options.model_dir = dir, options.device = device, options.ranks.check = true;
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  ExpectAgreesAsTrained(*engine, dir, /*decode_from=*/130);
  EXPECT_TRUE(engine->health().ok()) << engine->health().message();
}

class CudaRanksOn : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Nano, CudaRanksOn, testing::Values(kOneGpu, kTwoGpus),
                         [](const auto& instance) { return NameOfDevice(instance.param); });

// Models of Flash's widths, which eight ranks can divide.
class CudaRanksOfFlash : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, CudaRanksOfFlash,
                         testing::Values(kOneGpu, kOneGpuForFour, kOneGpuForEight, kTwoGpus, kFourGpus, kEightGpus),
                         [](const auto& instance) { return NameOfDevice(instance.param); });

// The ranks draw the same text as the host from their logits; more steps than a recording waits for, and several
// sequences.
TEST_P(CudaRanksOn, DrawnTokensAreThoseOfTheLogits) {
  DSV4_GPUS_OR_SKIP(GetParam());
  const auto engine = LoadOrFail(NanoOnRanks(GetParam()));
  ASSERT_NE(engine, nullptr);
  const int64_t v = engine->info().vocab_size;
  for (const int sequences : {1, 12}) {
    std::vector<std::vector<std::vector<TokenId>>> texts;
    for (const int logprobs : {-1, 0}) {  // with log-probabilities the host draws
      std::vector<std::unique_ptr<Session>> sessions;
      std::vector<std::unique_ptr<Sampler>> samplers;
      std::vector<DecodeItem> items;
      for (int i = 0; i < sequences; ++i) {
        sessions.push_back(std::move(engine->NewSession()).value());
        samplers.push_back(
            std::move(
                Sampler::Create({.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = 7, .top_logprobs = logprobs}, v))
                .value());
        ASSERT_TRUE(sessions.back()
                        ->Append(SomeTokens(9 + 40 * i, static_cast<uint64_t>(i), v), LogitRows::kNone, nullptr)
                        .ok());
        items.push_back(
            {.session = sessions.back().get(), .sampler = samplers.back().get(), .first = 17, .max_tokens = 40});
      }
      texts.emplace_back(static_cast<size_t>(sequences));
      const Status status = engine->Decode(
          items, [&](size_t i, const SampledToken& t) { return texts.back()[i].push_back(t.id), true; });
      ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(texts[0], texts[1]) << sequences;
    EXPECT_EQ(texts[0][0].size(), 40u);
  }
}

TEST_P(CudaRanksOn, SnapshotsGoOnWithTheSameBits) {
  DSV4_GPUS_OR_SKIP(GetParam());
  const auto engine = LoadOrFail(NanoOnRanks(GetParam()));
  ASSERT_NE(engine, nullptr);
  ExpectSnapshotGoesOn(*engine);
}

// Two ranks make the same model as one rank.
TEST_P(CudaRanksOn, SyntheticWeightsDoNotDependOnTheRanks) {
  DSV4_GPUS_OR_SKIP(GetParam());
  EngineOptions options;
  options.synthetic = {.shape = "nano", .seed = 5};
  options.device = "cuda";
  const std::vector<TokenId> ids = SomeTokens(150, 3, 4096);
  const auto one = LoadOrFail(options);
  options.device = GetParam();
  const auto two = LoadOrFail(options);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  ExpectAgreement("synthetic", Compare(AllLogits(*two, ids), AllLogits(*one, ids), 4096), 0.01, 0.98);
}

// Weights are read once, sent to the ranks, and packed on their GPUs: no bit differs from weights that were made there.
TEST_P(CudaRanksOn, AWrittenModelIsTheOneInMemory) {
  DSV4_GPUS_OR_SKIP(GetParam());
  for (const bool fp8_dense : {false, true}) {
    EngineOptions made;
    made.synthetic = {.shape = "nano", .fp8_dense = fp8_dense, .seed = 42};
    made.device = GetParam();
    const std::vector<float> want = LogitsOfModel(made);
    const TempDir temp;
    made.device = "cuda";
    ASSERT_TRUE(WriteSyntheticCheckpoint(made, temp / "m").ok());
    EngineOptions read;
    read.model_dir = temp / "m", read.device = GetParam();
    const std::vector<float> got = LogitsOfModel(read);
    EXPECT_FALSE(got.empty());
    EXPECT_TRUE(got == want) << "fp8_dense " << fp8_dense;
  }
}

// The transport changes nothing.
TEST(CudaRanksWords, HaveTheBitsOfEvents) {
  DSV4_GPUS_OR_SKIP(kTwoGpus);
  EngineOptions events = NanoOnRanks(kTwoGpus);
  events.ranks.collectives_by_events = true;
  const std::vector<float> want = LogitsOfModel(NanoOnRanks(kOneGpu));
  EXPECT_EQ(LogitsOfModel(NanoOnRanks(kTwoGpus)), want);
  EXPECT_EQ(LogitsOfModel(events), want);
}

// The logits of two texts' rows after a prompt, of Flash's widths: steps of both texts together or of one, `each` rows
// of a text.
std::vector<float> DecodedLogits(EngineOptions options, const std::string& device, bool events, bool together,
                                 size_t each = 1) {
  options.device = device, options.ranks.collectives_by_events = events, options.ranks.check = true;
  const auto engine = LoadOrFail(options);
  std::vector<float> logits[2];
  if (engine == nullptr) return {};
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint64_t i = 0; i < 2; ++i) {
    sessions.push_back(std::move(engine->NewSession()).value());
    const std::vector<TokenId> prompt = SomeTokens(131 + static_cast<int64_t>(i), i, engine->info().vocab_size);
    EXPECT_TRUE(sessions.back()->Append(prompt, LogitRows::kNone, nullptr).ok());
  }
  const std::vector<TokenId> tokens[2] = {SomeTokens(7, 8, engine->info().vocab_size),
                                          SomeTokens(7, 9, engine->info().vocab_size)};
  for (size_t k = 0; k < 7; k += each) {
    std::vector<float> rows[2];
    std::vector<StepItem> items;
    for (size_t i = 0; i < 2; ++i) {
      items.push_back({.session = sessions[i].get(),
                       .tokens = std::span(tokens[i]).subspan(k, std::min(each, 7 - k)),
                       .rows = LogitRows::kAll,
                       .logits = &rows[i]});
      if (together && i == 0) continue;
      EXPECT_TRUE(engine->Step(items).ok());
      items.clear();
    }
    for (size_t i = 0; i < 2; ++i) logits[i].insert(logits[i].end(), rows[i].begin(), rows[i].end());
  }
  EXPECT_TRUE(engine->health().ok()) << engine->health().message();
  logits[0].insert(logits[0].end(), logits[1].begin(), logits[1].end());
  return std::move(logits[0]);
}

// Few rows have their own launches: the expansion of a rank's heads, and partials that are sent while they are
// computed. They have the same bits as among others, with both transports. KV rows and index keys in the formats that
// the model was trained with, and in others.
TEST_P(CudaRanksOfFlash, ARowHasTheBitsThatItHasAmongOthers) {
  DSV4_GPUS_OR_SKIP(GetParam());
  for (const bool trained : {true, false}) {
    EngineOptions options;
    options.synthetic = {.shape = "flash", .num_layers = 4, .fp8_dense = !trained, .seed = 5};
    options.max_context = 1024;
    options.kv_dtype = trained ? KvDtype::kFp8 : KvDtype::kBf16;
    options.index_dtype = trained ? IndexDtype::kFp4 : IndexDtype::kBf16;
    const std::vector<float> alone = DecodedLogits(options, GetParam(), false, false);
    ASSERT_FALSE(alone.empty());
    EXPECT_TRUE(alone == DecodedLogits(options, GetParam(), false, true)) << trained;
    for (const size_t each : {2, 3, 4, 6})
      EXPECT_TRUE(alone == DecodedLogits(options, GetParam(), false, false, each)) << trained << ", rows " << each;
    if (GpusOf(GetParam()) > 1) {
      EXPECT_TRUE(alone == DecodedLogits(options, GetParam(), true, false, 4)) << trained;
      EXPECT_TRUE(alone == DecodedLogits(options, GetParam(), true, false)) << trained;
    }
    // Random weights: choices of experts near a tie differ with the order of a sum.
    ExpectAgreement(
        "one GPU",
        Compare(alone, DecodedLogits(options, "cuda", false, false), static_cast<int64_t>(alone.size()) / 14), 0.1, 0);
  }
}

// Long prompts: rows travel as FP16 blocks, and early; the experts' sums travel while they are computed.
TEST_P(CudaRanksOfFlash, LongPromptsHaveTheBitsOfEvents) {
  if (GpusOf(GetParam()) == 1) GTEST_SKIP() << "ranks of one GPU have no words";
  DSV4_GPUS_OR_SKIP(GetParam());
  EngineOptions options;
  options.synthetic = {.shape = "flash", .num_layers = 4, .seed = 5};
  options.max_context = 4096;
  const auto last_row = [&](const char* device, bool events) {
    options.device = device, options.ranks.collectives_by_events = events;
    const auto engine = LoadOrFail(options);
    std::vector<float> logits;
    if (engine == nullptr) return logits;
    const auto session = std::move(engine->NewSession()).value();
    for (const int64_t tokens : {1301, 2048}) {  // shares of several sizes
      const std::vector<TokenId> ids = SomeTokens(tokens, 3, engine->info().vocab_size);
      std::vector<float> row;
      EXPECT_TRUE(session->Append(ids, LogitRows::kLast, &row).ok());
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  };
  const std::vector<float> words = last_row(GetParam(), false);
  ASSERT_FALSE(words.empty());
  EXPECT_TRUE(words == last_row(GetParam(), true));
  // Random weights: choices of experts near a tie differ with the order of a sum.
  ExpectAgreement("one GPU", Compare(words, last_row("cuda", false), static_cast<int64_t>(words.size()) / 2), 0.1, 0);
}

// ---- --rank-invariant: the same bits as one GPU with the same flag. ----

EngineOptions WithAnyRanks(EngineOptions options, const std::string& device) {
  options.device = device;
  options.ranks.invariant = true;
  return options;
}

// Prompts of every regime, and decode rows after them.
std::vector<float> LogitsOfAllRegimes(const EngineOptions& options) {
  const auto engine = LoadOrFail(options);
  std::vector<float> logits;
  if (engine == nullptr) return logits;
  for (const int64_t tokens : {60, 300, 1301}) {
    const auto session = std::move(engine->NewSession()).value();
    for (int64_t n : {tokens, int64_t{1}, int64_t{3}}) {
      std::vector<float> row;
      EXPECT_TRUE(
          session->Append(SomeTokens(n, static_cast<uint64_t>(n), engine->info().vocab_size), LogitRows::kLast, &row)
              .ok());
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }
  EXPECT_TRUE(engine->health().ok()) << engine->health().message();
  return logits;
}

TEST_P(CudaRanks, RankInvariantHasOneGpusBits) {
  const auto [fixture, device] = GetParam();
  DSV4_GPUS_OR_SKIP(device);
  DSV4_FIXTURE_OR_SKIP(dir, fixture);
  const EngineOptions options = RankOptions(dir, device);
  const auto one = LoadOrFail(WithAnyRanks(options, "cuda"));
  ASSERT_NE(one, nullptr);
  ExpectFixtureAgrees(*one, dir);
  const std::vector<TokenId> ids = ReferenceArray(dir, "prompt_ids").i32;
  const auto several = LoadOrFail(WithAnyRanks(options, device));
  ASSERT_NE(several, nullptr);
  EXPECT_TRUE(AllLogits(*several, ids) == AllLogits(*one, ids));
  EXPECT_TRUE(AllLogits(*several, ids, 130) == AllLogits(*one, ids, 130));
}

TEST_P(CudaRanksOfFlash, RankInvariantHasOneGpusBitsInAllRegimes) {
  DSV4_GPUS_OR_SKIP(GetParam());
  for (const bool fp8_dense : {false, true}) {
    EngineOptions flash;
    flash.synthetic = {.shape = "flash", .num_layers = 4, .fp8_dense = fp8_dense, .seed = 5};
    flash.max_context = 2048;
    const std::vector<float> want = LogitsOfAllRegimes(WithAnyRanks(flash, "cuda"));
    EXPECT_FALSE(want.empty());
    EXPECT_TRUE(LogitsOfAllRegimes(WithAnyRanks(flash, GetParam())) == want) << "fp8_dense " << fp8_dense;
  }
}

// A batch that decodes, in recorded steps, drawn on the GPUs; and a file that is read in slices.
TEST_P(CudaRanksOn, RankInvariantTextIsOneGpus) {
  DSV4_GPUS_OR_SKIP(GetParam());
  const TempDir temp;
  EngineOptions made;
  made.synthetic = {.shape = "nano", .seed = 42};
  made.device = "cuda";
  ASSERT_TRUE(WriteSyntheticCheckpoint(made, temp / "m").ok());
  EngineOptions read;
  read.model_dir = temp / "m";
  EXPECT_TRUE(LogitsOfModel(WithAnyRanks(read, GetParam())) == LogitsOfModel(WithAnyRanks(made, "cuda")));
  std::vector<std::vector<std::vector<TokenId>>> texts;
  for (const std::string& device : {std::string("cuda"), std::string(GetParam())}) {
    const auto engine = LoadOrFail(WithAnyRanks(NanoOnRanks(device), device));
    ASSERT_NE(engine, nullptr);
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<DecodeItem> items;
    for (uint64_t i = 0; i < 12; ++i) {
      sessions.push_back(std::move(engine->NewSession()).value());
      samplers.push_back(std::move(Sampler::Create({.temperature = 0.8f, .seed = i}, 4096)).value());
      const std::vector<TokenId> prompt = SomeTokens(9 + 40 * static_cast<int64_t>(i), i, 4096);
      ASSERT_TRUE(sessions.back()->Append(prompt, LogitRows::kNone, nullptr).ok());
      items.push_back(
          {.session = sessions.back().get(), .sampler = samplers.back().get(), .first = 17, .max_tokens = 40});
    }
    texts.emplace_back(items.size());
    ASSERT_TRUE(
        engine->Decode(items, [&](size_t i, const SampledToken& t) { return texts.back()[i].push_back(t.id), true; })
            .ok());
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0][11].size(), 40u);
}

TEST(CudaRanksPlan, CountsWhatARankTakes) {
  DSV4_GPU_OR_SKIP();
  const auto plan = [](const char* device) {
    auto description = Inspect(NanoOnRanks(device));
    EXPECT_TRUE(description.ok()) << description.status().message();
    return description.ok() ? description->plan : MemoryPlan{};
  };
  const MemoryPlan one = plan("cuda"), two = plan(kOneGpu);
  EXPECT_EQ(one.ranks, 1);
  EXPECT_EQ(one.collective_bytes, 0);
  EXPECT_EQ(two.ranks, 2);
  EXPECT_GT(two.collective_bytes, 0);
  EXPECT_EQ(two.kv_fixed_bytes, 2 * one.kv_fixed_bytes);
  EXPECT_GT(two.weight_bytes, one.weight_bytes);
  EXPECT_LT(two.weight_bytes, 2 * one.weight_bytes);
}

}  // namespace
}  // namespace dsv4::test
