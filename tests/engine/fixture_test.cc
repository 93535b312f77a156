// The engine against the float64 reference logits, in all formats and layer kinds.

#include <algorithm>
#include <cmath>

#include "device/cpu_features.h"
#include "support/agreement.h"
#include "support/fixture.h"
#include "support/fixture_agreement.h"

namespace dsv4::test {
namespace {

constexpr float kTolerance = 2e-3f;  // docs/dev/numerics.md

class Fixture : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Fixture,
                         testing::Values("mini-bf16", "flash-nvfp4", "pro-official", "flash-all-nvfp4",
                                         "flash-8-groups"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Fixture, LogitsMatchTheReferenceInEveryRow) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  auto engine = LoadOrFail(ExactOptions(dir));
  ASSERT_NE(engine, nullptr);
  EXPECT_LE(LargestDifference(AllLogits(*engine, ids.i32), reference.f32), kTolerance);
}

TEST_P(Fixture, EveryChunkSizeGivesTheSameBits) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids");
  auto whole = LoadOrFail(ExactOptions(dir));
  ASSERT_NE(whole, nullptr);
  const std::vector<float> expected = AllLogits(*whole, ids.i32);
  for (const int64_t chunk : {1, 3, 37, 128, 129}) {
    EngineOptions options = ExactOptions(dir);
    options.prefill_chunk = chunk;
    auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(AllLogits(*engine, ids.i32), expected) << "chunk " << chunk;
  }
}

TEST_P(Fixture, DecodeGivesTheSameBitsAsPrefill) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids");
  auto engine = LoadOrFail(ExactOptions(dir));
  ASSERT_NE(engine, nullptr);
  const std::vector<float> expected = AllLogits(*engine, ids.i32);
  for (const size_t from : {1, 4, 127, 128, 130}) {
    EXPECT_EQ(AllLogits(*engine, ids.i32, from), expected) << "decode from " << from;
  }
}

// On AMX tiles: the same budget, and rows that do not depend on their step when all steps use them.
TEST_P(Fixture, AmxTilesMatchTheReferenceAndKeepTheirBits) {
  if (!CpuHasAmx()) GTEST_SKIP() << "this CPU has no AMX tiles";
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  EngineOptions options = ExactOptions(dir);
  options.amx = AmxUse::kAlways;
  auto whole = LoadOrFail(options);
  ASSERT_NE(whole, nullptr);
  const std::vector<float> expected = AllLogits(*whole, ids.i32);
  EXPECT_LE(LargestDifference(expected, reference.f32), kTolerance);
  EXPECT_EQ(AllLogits(*whole, ids.i32, 130), expected);
  options.prefill_chunk = 37;
  options.num_threads = 3;
  auto chunks = LoadOrFail(options);
  ASSERT_NE(chunks, nullptr);
  EXPECT_EQ(AllLogits(*chunks, ids.i32), expected);
  options.amx = AmxUse::kPrefill;
  auto prefill = LoadOrFail(options);
  ASSERT_NE(prefill, nullptr);
  EXPECT_LE(LargestDifference(AllLogits(*prefill, ids.i32, 130), reference.f32), kTolerance);
}

TEST_P(Fixture, GreedyTokensFollowTheReference) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids"), greedy = ReferenceArray(dir, "greedy_ids");
  const Array margin = ReferenceArray(dir, "greedy_margin");
  auto engine = LoadOrFail(ExactOptions(dir));
  ASSERT_NE(engine, nullptr);
  auto session = engine->NewSession();
  ASSERT_TRUE(session.ok());
  std::vector<float> logits;
  ASSERT_TRUE((*session)->Append(ids.i32, LogitRows::kLast, &logits).ok());
  int compared = 0;
  for (size_t i = 0; i < greedy.i32.size(); ++i) {
    if (margin.f32[i] > 2 * kTolerance) {
      EXPECT_EQ(ArgMax(logits.data(), engine->info().vocab_size), greedy.i32[i]) << "token " << i;
      ++compared;
    }
    ASSERT_TRUE((*session)->Append({&greedy.i32[i], 1}, LogitRows::kLast, &logits).ok());
  }
  EXPECT_GT(compared, static_cast<int>(greedy.i32.size() * 5 / 6));
}

TEST_P(Fixture, AsTrainedRoundingAgreesWithTheSimulatedReference) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  EngineOptions options;
  options.model_dir = dir;
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const std::vector<float> logits = ExpectAgreesAsTrained(*engine, dir);
  // The roundings take effect: without them the logits would equal the unrounded ones.
  EXPECT_GT(LargestDifference(logits, ReferenceArray(dir, "logits").f32), kTolerance);
}

double Median(std::vector<float> x) {
  const auto middle = x.begin() + static_cast<int64_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

// Other rounding modes have no separate reference. Each must round something, coarser formats more. They must be closer
// to the exact logits than unrelated logits are (docs/dev/numerics.md, "Rounded activations", derives the shares).
TEST_P(Fixture, OtherModesRoundAndStayNearTheExactLogits) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  const int64_t v = reference.shape[1], rows = 95;  // before the indexer chooses: no choice can flip
  const auto n = static_cast<size_t>(rows * v);
  const bool quantised = std::string(GetParam()) != "mini-bf16";

  std::vector<float> unrelated;  // row t against row t + 1
  for (size_t i = 0; i + static_cast<size_t>(v) < n; ++i) {
    unrelated.push_back(std::fabs(reference.f32[i] - reference.f32[i + static_cast<size_t>(v)]));
  }
  const double far = Median(unrelated);

  const auto distance = [&](KvDtype kv, IndexDtype index, ActivationDtype activation) {
    EngineOptions options = ExactOptions(dir);
    options.kv_dtype = kv;
    options.index_dtype = index;
    options.activation_dtype = activation;
    auto engine = LoadOrFail(options);
    const std::vector<float> logits = AllLogits(*engine, {ids.i32.data(), static_cast<size_t>(rows)});
    std::vector<float> differences;
    for (size_t i = 0; i < n; ++i) differences.push_back(std::fabs(logits[i] - reference.f32[i]));
    return Median(differences);
  };
  const double exact = distance(KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kF32);
  const double bf16 = distance(KvDtype::kBf16, IndexDtype::kBf16, ActivationDtype::kF32);
  const double fp8 = distance(KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kFp8);
  const double nvfp4 = distance(KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kNvfp4);
  const double int8 = distance(KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kInt8);
  const double int16 = distance(KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kInt16);
  const double int24 = distance(KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kInt24);
  EXPECT_LT(10 * exact, bf16);
  EXPECT_LT(bf16, 0.02);  // half a BF16 step is 1/8 of half an E4M3 step: below the limit for FP8 rows
  if (quantised) {
    EXPECT_LT(bf16, fp8);
    EXPECT_LT(fp8, nvfp4);
    EXPECT_LT(fp8, far / 4);
    EXPECT_LT(nvfp4, far / 2);
    EXPECT_LT(int8, fp8);
    EXPECT_LT(16 * int16, int8);
    EXPECT_LT(int24, 2 * exact);
  } else {  // inputs of BF16 weights are not rounded
    EXPECT_EQ(fp8, exact);
    EXPECT_EQ(nvfp4, exact);
    EXPECT_EQ(int8, exact);
    EXPECT_EQ(int16, exact);
    EXPECT_EQ(int24, exact);
  }
}

}  // namespace
}  // namespace dsv4::test
