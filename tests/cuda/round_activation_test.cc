#include "ops/round_activation/round_activation.h"

#include <limits>

#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4 {
void RoundActivationCuda(const ExecContext& ctx, const RoundActivationArgs& args);
}

namespace dsv4::test {
namespace {

constexpr ActivationDtype kModes[] = {ActivationDtype::kNative, ActivationDtype::kF32, ActivationDtype::kFp8, ActivationDtype::kNvfp4};

// Rows of very different size, subnormals, zeros, and rows that hold a NaN or an infinity.
std::vector<float> Rows(Random& random, int64_t t, int64_t k) {
  std::vector<float> x;
  for (int64_t r = 0; r < t; ++r) {
    std::vector<float> row = r % 3 == 2 ? random.Hostiles(k) : random.Normals(k, r % 2 ? 1e-3f : 1e3f);
    if (r % 11 == 5) row[static_cast<size_t>(random.Index(k))] = std::numeric_limits<float>::quiet_NaN();
    if (r % 11 == 7) row[static_cast<size_t>(random.Index(k))] = -std::numeric_limits<float>::infinity();
    if (r % 11 == 9) std::fill(row.begin(), row.end(), r % 2 ? -0.0f : 1e-42f);
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

TEST(CudaRoundActivation, SameBitsAsTheReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const int64_t k : {1, 15, 16, 128, 200, 300, 4096, 7168}) {
    const int64_t t = 67;
    GuardBuffer<float> x(Shape{t, k}, Rows(random, t, k)), want(Shape{t, k}), y(Shape{t, k}), in_place(Shape{t, k}, x.values());
    for (const ActivationDtype mode : kModes) {
      RoundActivation({.reference_ops = true}, {.x = x.tensor(), .y = want.tensor(), .mode = mode});
      std::copy(x.span().begin(), x.span().end(), in_place.span().begin());
      y.Poison();
      Mirror gpu;
      RoundActivationCuda(gpu.ctx(), {.x = gpu.In(x.tensor()), .y = gpu.Out(y.tensor()), .mode = mode});
      const Tensor both = gpu.Out(in_place.tensor());
      RoundActivationCuda(gpu.ctx(), {.x = both, .y = both, .mode = mode});
      gpu.Finish();
      EXPECT_TRUE(BitEqual(y.span(), want.span())) << "K " << k << " mode " << static_cast<int>(mode);
      EXPECT_TRUE(BitEqual(in_place.span(), want.span())) << "K " << k << " mode " << static_cast<int>(mode) << " in place";
    }
  }
}

// Lesson 6: the scale is this row's, taken now: a row alone gives the bits that it gives beside larger rows.
TEST(CudaRoundActivation, Lesson06ARowDoesNotDependOnItsBatchOrThePast) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const int64_t t = 9, k = 160;
  GuardBuffer<float> x(Shape{t, k}, Rows(random, t, k)), all(Shape{t, k}), one(Shape{1, k});
  for (const ActivationDtype mode : {ActivationDtype::kFp8, ActivationDtype::kNvfp4}) {
    Mirror gpu;
    RoundActivationCuda(gpu.ctx(), {.x = gpu.In(x.tensor()), .y = gpu.Out(all.tensor()), .mode = mode});
    gpu.Finish();
    for (int64_t r = t - 1; r >= 0; --r) {
      Mirror alone;
      RoundActivationCuda(alone.ctx(), {.x = alone.In({x.row(r).data(), DType::kF32, {1, k}}), .y = alone.Out(one.tensor()), .mode = mode});
      alone.Finish();
      EXPECT_TRUE(BitEqual(one.span(), all.row(r))) << r;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
