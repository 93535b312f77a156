// Every kernel in one test: the whole model on kernels against the whole model on references.

#include "model/deepseek_v4/pass/forward_fixture.h"

namespace dsv4::test {
namespace {

class Kernels : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Kernels,
                         testing::Values("mini-bf16", "flash-nvfp4", "pro-official", "pro-official-cut",
                                         "flash-all-nvfp4"),
                         FixtureTestName);

TEST_P(Kernels, AgreeWithReferencesAfterEveryLayer) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam());
  std::vector<std::vector<float>> kernels, references;
  RunForward(dir, /*reference_ops=*/false, &kernels, 4);
  RunForward(dir, /*reference_ops=*/true, &references, 4);
  ASSERT_EQ(kernels.size(), references.size());
  for (size_t l = 0; l < kernels.size(); ++l) {
    EXPECT_LE(RelativeRms(kernels[l], references[l]), 2e-5) << "layer " << l;  // docs/dev/numerics.md
  }
}

}  // namespace
}  // namespace dsv4::test
