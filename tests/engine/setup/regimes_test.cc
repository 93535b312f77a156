// The kernels for a row on a GPU, and the number of rows in a pass. tests/cuda/regimes_test.cc tests the bits.
#include "engine/setup/regimes.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

EngineOptions OnGpu() {
  EngineOptions options;
  options.device = "cuda";
  return options;
}

TEST(Regimes, FollowTheRequestsOwnNumberOfTokens) {
  const Regimes r(OnGpu());
  EXPECT_EQ(r.Of(0), Regime::kDecode);
  EXPECT_EQ(r.Of(1), Regime::kDecode);
  EXPECT_EQ(r.Of(128), Regime::kDecode);
  EXPECT_EQ(r.Of(129), Regime::kPrompt);
  EXPECT_EQ(r.Of(1024), Regime::kPrompt);
  EXPECT_EQ(r.Of(1025), Regime::kLongPrompt);
}

TEST(Regimes, OneCpuHasThoseOfRanksWhereItIsToHaveTheirBits) {
  EngineOptions options;
  EXPECT_EQ(Regimes(options).Of(1025), Regime::kDecode);
  options.ranks.invariant = true;
  EXPECT_EQ(Regimes(options).Of(128), Regime::kDecode);
  EXPECT_EQ(Regimes(options).Of(1025), Regime::kLongPrompt);
}

TEST(Regimes, OneRuleForPromptsOfEveryLength) {
  EngineOptions options = OnGpu();
  for (const auto& [inputs, regime] :
       {std::pair{PromptInputs::kOne, Regime::kLongPrompt}, {PromptInputs::kTwo, Regime::kPrompt}}) {
    options.prompt_inputs = inputs;
    const Regimes r(options);
    for (const int64_t tokens : {1, 128, 129, 1024, 1025}) EXPECT_EQ(r.Of(tokens), regime);
    EXPECT_EQ(r.Of(0), Regime::kDecode);
  }
}

TEST(Regimes, DecodeRowsShareAPassUpToALimit) {
  const Regimes r(OnGpu());
  EXPECT_EQ(r.MaxRows(Regime::kDecode, 4096), 128);
  EXPECT_EQ(r.MaxRows(Regime::kPrompt, 8192), 8192);
  EXPECT_EQ(r.MaxRows(Regime::kLongPrompt, 37), 37);
  EXPECT_TRUE(r.DecodeTogether(128));
  EXPECT_FALSE(r.DecodeTogether(129));
}

TEST(Regimes, MoreDecodeRowsTakeOtherKernelsWhereThatWasAskedFor) {
  EngineOptions options = OnGpu();
  options.max_decode_rows = 256;
  const Regimes r(options);
  EXPECT_EQ(r.MaxRows(Regime::kDecode, 4096), 256);
  EXPECT_TRUE(r.DecodeTogether(256));
  EXPECT_EQ(r.OfPass(Regime::kDecode, 128), Regime::kDecode);
  EXPECT_EQ(r.OfPass(Regime::kDecode, 129), Regime::kPrompt);
  EXPECT_EQ(r.OfPass(Regime::kLongPrompt, 1), Regime::kLongPrompt);
}

TEST(Regimes, RanksOnACpuTellPromptsFromDecodeRows) {
  EngineOptions options;
  options.device = "cpu*2";
  EXPECT_EQ(Regimes(options).Of(0), Regime::kDecode);
  EXPECT_EQ(Regimes(options).Of(128), Regime::kDecode);
  EXPECT_EQ(Regimes(options).Of(129), Regime::kPrompt);
}

TEST(Regimes, AreOneOnACpuAndWhereThatWasAskedFor) {
  EngineOptions cpu, invariant = OnGpu();
  invariant.batch_invariant = true;
  for (const Regimes& r : {Regimes(cpu), Regimes(invariant)}) {
    EXPECT_EQ(r.Of(5000), Regime::kDecode);
    EXPECT_EQ(r.MaxRows(Regime::kDecode, 4096), 4096);
    EXPECT_EQ(r.OfPass(Regime::kDecode, 4096), Regime::kDecode);
    EXPECT_TRUE(r.DecodeTogether(1000));
  }
}

}  // namespace
}  // namespace dsv4
