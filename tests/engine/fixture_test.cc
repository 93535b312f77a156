// The engine against the float64 reference logits (issue 2, section 2.1), in all formats and layer kinds.

#include <algorithm>
#include <cmath>

#include "support/fixture.h"

namespace dsv4::test {
namespace {

constexpr float kTolerance = 2e-3f;  // docs/numerics.md

class Fixture : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Fixture, testing::Values("mini-bf16", "flash-nvfp4", "pro-official", "flash-all-nvfp4"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN sticks
  }
  return largest;
}

int64_t ArgMax(const float* row, int64_t v) { return std::max_element(row, row + v) - row; }

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
  EXPECT_GT(compared, 40);
}

TEST_P(Fixture, AsTrainedRoundingAgreesWithTheSimulatedReference) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "sim_logits");
  EngineOptions options;  // FP8 rows, FP4 index: the defaults
  options.model_dir = dir;
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const std::vector<float> logits = AllLogits(*engine, ids.i32);
  ASSERT_EQ(logits.size(), reference.f32.size());
  const int64_t v = reference.shape[1], rows = reference.shape[0];
  int64_t agreed = 0;
  for (int64_t r = 0; r < rows; ++r) {
    agreed += ArgMax(logits.data() + r * v, v) == ArgMax(reference.f32.data() + r * v, v);
  }
  std::vector<float> differences(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) differences[i] = std::fabs(logits[i] - reference.f32[i]);
  const auto middle = differences.begin() + static_cast<int64_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  EXPECT_GE(static_cast<double>(agreed), 0.97 * static_cast<double>(rows));
  EXPECT_LE(*middle, 0.02f);
  // The roundings are really there: without them the logits would equal the unrounded ones.
  EXPECT_GT(LargestDifference(logits, ReferenceArray(dir, "logits").f32), kTolerance);
}

// Other rounding modes have no reference of their own: they must stay near the exact logits, and differ from them.
TEST_P(Fixture, OtherModesStayNearTheExactLogits) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  const int64_t v = reference.shape[1], rows = 100;  // before top-k choices can flip
  const std::span<const TokenId> tokens(ids.i32.data(), static_cast<size_t>(rows));
  const bool quantised = std::string(GetParam()) != "mini-bf16";
  struct Mode {
    const char* name;
    KvDtype kv;
    IndexDtype index;
    ActivationDtype activation;
    double median_limit;  // of |difference|; the logits' standard deviation is about 1.3
  };
  for (const Mode& mode : {Mode{"bf16", KvDtype::kBf16, IndexDtype::kBf16, ActivationDtype::kF32, 0.01},
                           Mode{"fp8 activations", KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kFp8, 0.1},
                           Mode{"nvfp4 activations", KvDtype::kF32, IndexDtype::kF32, ActivationDtype::kNvfp4, 0.4}}) {
    EngineOptions options = ExactOptions(dir);
    options.kv_dtype = mode.kv;
    options.index_dtype = mode.index;
    options.activation_dtype = mode.activation;
    auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    const std::vector<float> logits = AllLogits(*engine, tokens);
    std::vector<float> differences;
    for (size_t i = 0; i < static_cast<size_t>(rows * v); ++i) {
      differences.push_back(std::fabs(logits[i] - reference.f32[i]));
      ASSERT_FALSE(std::isnan(differences.back())) << mode.name;
    }
    std::sort(differences.begin(), differences.end());
    EXPECT_LE(differences[differences.size() / 2], mode.median_limit) << mode.name;
    if (quantised || mode.activation == ActivationDtype::kF32) {
      EXPECT_GT(differences.back(), 1e-4) << mode.name << " rounds nothing";
    } else {
      EXPECT_LE(differences.back(), kTolerance) << "BF16 weights: their inputs are not rounded";
    }
  }
}

}  // namespace
}  // namespace dsv4::test
