// Shapes for which a GPU's kernels have separate code. The tests for every device are in tests/ops/linear_test.cc.
#include "support/linear_fixture.h"

namespace dsv4::test {
namespace {

std::vector<float> RunLinear(const QuantTensor& w, const Tensor& x, int64_t groups = 1) {
  return LinearWay{LinearSums::kGpu, nullptr}.Run(w, x, groups);
}

class CudaLinearFormats : public ::testing::TestWithParam<QuantCase> {};
INSTANTIATE_TEST_SUITE_P(Formats, CudaLinearFormats, ::testing::ValuesIn(AllQuantCases()),
                         [](const auto& test) { return test.param.name(); });

// One token's groups, of whole and incomplete row tiles, with whole and incomplete chunks: fast under
// compute-sanitizer.
TEST_P(CudaLinearFormats, OneTokenGroupsShort) {
  DSV4_GPU_OR_SKIP();
  Random random(6);
  for (const auto& [n, k, groups] : {std::tuple{int64_t{192}, int64_t{2048}, int64_t{3}}, {96, 192, 2}, {66, 192, 3}}) {
    const QuantFixture w(random, GetParam(), n, k, {.unaligned = false});
    GuardBuffer<float> x({1, groups * k}, random.Normals(groups * k));
    const ExactLinear expected = ExactOf(LinearSums::kGpu, x.values(), w, 1, groups);
    EXPECT_TRUE(WithinBounds(RunLinear(w.tensor(), x.tensor(), groups), expected.y, expected.bound)) << "N " << n;
  }
}

// A square of real size: every multiprocessor has work, clusters of eight, several rounds.
TEST(CudaLinear, TrueShapes) {
  DSV4_GPU_OR_SKIP();
  Random random(5);
  for (const auto& [n, k, groups] :
       {std::tuple{int64_t{2048}, int64_t{4096}, int64_t{1}}, {4096, 2048, 1}, {4096, 1024, 4}, {256, 8192, 1}}) {
    for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kFp8Block}) {
      SCOPED_TRACE(StrCat("N ", n, " K ", k, " G ", groups));
      const QuantFixture w(random, {format}, n, k, {.unaligned = false});
      const int64_t t = 2;
      GuardBuffer<float> x({t, groups * k}, random.Normals(t * groups * k));
      const ExactLinear expected = ExactOf(LinearSums::kGpu, x.values(), w, t, groups);
      const std::vector<float> y = RunLinear(w.tensor(), x.tensor(), groups);
      EXPECT_TRUE(WithinBounds(y, expected.y, expected.bound));
      EXPECT_TRUE(BitEqual(RunLinear(w.tensor(), {x.data(), DType::kF32, {1, groups * k}}, groups),
                           std::span(y).first(static_cast<size_t>(n))));
    }
  }
}

// Rings and inputs of 17 tokens together fill the shared memory of a block on Hopper, without the kernel's static part.
// So the rings must be shorter.
TEST(CudaLinear, InputsThatFillSharedMemory) {
  DSV4_GPU_OR_SKIP();
  Random random(7);
  const int64_t n = 16 * 8 * 132, k = 1792, t = 17;
  const QuantFixture w(random, {WeightFormat::kNvfp4}, n, k, {.unaligned = false});
  GuardBuffer<float> x({t, k}, random.Normals(t * k));
  const std::vector<float> all = RunLinear(w.tensor(), x.tensor());
  for (const auto& [first, size] : {std::pair<int64_t, int64_t>{0, 16}, {16, 1}}) {
    const Tensor part{x.data() + first * k, DType::kF32, {size, k}};
    EXPECT_TRUE(BitEqual(RunLinear(w.tensor(), part),
                         std::span(all).subspan(static_cast<size_t>(first * n), static_cast<size_t>(size * n))))
        << first;
  }
}

}  // namespace
}  // namespace dsv4::test
