// The streams after every layer against the float64 reference (`hidden.L`): shows where an error of the logits begins.

#include "model/deepseek_v4/pass/forward_fixture.h"

namespace dsv4::test {
namespace {

class Hidden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Hidden,
                         testing::Values("mini-bf16", "flash-nvfp4", "pro-official", "pro-official-cut",
                                         "flash-all-nvfp4"),
                         FixtureTestName);

TEST_P(Hidden, StreamsAfterEveryLayerMatchTheReference) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  constexpr int64_t kLast = 64;  // the reference holds the last 64 tokens
  std::vector<std::vector<float>> streams;
  RunForward(dir, /*reference_ops=*/false, &streams, kLast);
  ASSERT_FALSE(streams.empty());
  for (size_t l = 0; l < streams.size(); ++l) {
    const Array reference = ReferenceArray(dir, "hidden." + std::to_string(l));
    ASSERT_EQ(streams[l].size(), reference.f32.size());
    EXPECT_LE(RelativeRms(streams[l], reference.f32), 2e-5) << "layer " << l;  // docs/dev/numerics.md
  }
}

}  // namespace
}  // namespace dsv4::test
