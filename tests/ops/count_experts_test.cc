#include "ops/count_experts/count_experts.h"

#include <gtest/gtest.h>

#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void CountOnGpu(const ExecContext&, const CountExpertsArgs& a) {
  Mirror gpu;
  const int64_t ids = (a.chosen.dim(0) - 1) * a.layer_stride + a.num_ids;
  const Tensor experts = gpu.In({const_cast<int32_t*>(a.experts), DType::kI32, {ids}});
  CountExperts(gpu.ctx(), {.experts = experts.i32(),
                           .layer_stride = a.layer_stride,
                           .num_ids = a.num_ids,
                           .chosen = gpu.Out(a.chosen),
                           .passes = a.passes ? gpu.Out(a.passes) : Tensor{}});
  gpu.Finish();
}

DSV4_DEVICE_TEST(CountExperts, AddsToWhatIsThere) {
  for (const auto& at : Places(on, CountExperts, CountOnGpu)) {
    // 4 is the shared expert. The fifth number of a layer is outside the counted ones.
    GuardBuffer<int32_t> experts({2, 5}, {0, 2, 2, 4, -1, /**/ 1, 1, 1, 1, 1});
    GuardBuffer<int64_t> chosen({2, 4}, {10, 20, 30, 40, 50, 60, 70, 80}), passes({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
    at.run({.experts = experts.tensor().i32(),
            .layer_stride = 5,
            .num_ids = 4,
            .chosen = chosen.tensor(),
            .passes = passes.tensor()});
    EXPECT_EQ(chosen.values(), (std::vector<int64_t>{11, 20, 32, 40, 50, 64, 70, 80})) << at.name;
    EXPECT_EQ(passes.values(), (std::vector<int64_t>{2, 2, 4, 4, 5, 7, 7, 8})) << at.name;
  }
}

DSV4_DEVICE_TEST(CountExperts, PassesMayBeLeftOut) {
  for (const auto& at : Places(on, CountExperts, CountOnGpu)) {
    GuardBuffer<int32_t> experts({1, 3}, {1, 0, 1});
    GuardBuffer<int64_t> chosen({1, 2}, {5, 6});
    at.run(
        {.experts = experts.tensor().i32(), .layer_stride = 3, .num_ids = 3, .chosen = chosen.tensor(), .passes = {}});
    EXPECT_EQ(chosen.values(), (std::vector<int64_t>{6, 8})) << at.name;
  }
}

DSV4_DEVICE_TEST(CountExperts, CountsWholePrompts) {
  for (const auto& at : Places(on, CountExperts, CountOnGpu)) {
    constexpr int64_t kLayers = 3, kIds = 24571, kExperts = 384;
    Random random(11);
    GuardBuffer<int32_t> experts({kLayers, kIds});
    GuardBuffer<int64_t> chosen({kLayers, kExperts}), passes({kLayers, kExperts});
    std::vector<int64_t> want(kLayers * kExperts), seen(kLayers * kExperts);
    for (int64_t i = 0; i < kLayers * kExperts; ++i) chosen[i] = passes[i] = 0;
    for (int64_t i = 0; i < kLayers * kIds; ++i) {
      experts[i] = static_cast<int32_t>(random.Index(kExperts / 2) * 2);  // odd ones are never chosen
      ++want[static_cast<size_t>(i / kIds * kExperts + experts[i])];
    }
    for (size_t i = 0; i < want.size(); ++i) seen[i] = want[i] > 0 ? 1 : 0;
    at.run({.experts = experts.tensor().i32(),
            .layer_stride = kIds,
            .num_ids = kIds,
            .chosen = chosen.tensor(),
            .passes = passes.tensor()});
    EXPECT_EQ(chosen.values(), want) << at.name;
    EXPECT_EQ(passes.values(), seen) << at.name;
  }
}

}  // namespace
}  // namespace dsv4::test
