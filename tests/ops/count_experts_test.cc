#include "ops/count_experts/count_experts.h"

#include <gtest/gtest.h>

#include "ops/idle_row.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void CountOnGpu(const ExecContext&, const CountExpertsArgs& a) {
  Mirror gpu;
  const int64_t ids = (a.chosen.dim(0) - 1) * a.layer_stride + a.tokens.dim(0) * a.slots;
  const Tensor experts = gpu.In({const_cast<int32_t*>(a.experts), DType::kI32, {ids}});
  CountExperts(gpu.ctx(), {.experts = experts.i32(), .layer_stride = a.layer_stride, .slots = a.slots,
                           .tokens = gpu.In(a.tokens), .chosen = gpu.Out(a.chosen), .passes = gpu.Out(a.passes)});
  gpu.Finish();
}

DSV4_DEVICE_TEST(CountExperts, AddsToWhatIsThere) {
  for (const auto& at : Places(on, CountExperts, CountOnGpu)) {
    // 4: the shared one; a layer's seventh is none of it. The second of three tokens is idle.
    GuardBuffer<int32_t> experts({2, 7}, {0, 2, 0, 2, 2, 4, -1, /**/ 1, 1, 1, 3, 1, 1, 1});
    GuardBuffer<int32_t> tokens({3}, {9, kIdleToken, 9});
    GuardBuffer<int64_t> chosen({2, 4}, {10, 20, 30, 40, 50, 60, 70, 80}), passes({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
    at.run({.experts = experts.tensor().i32(), .layer_stride = 7, .slots = 2, .tokens = tokens.tensor(),
            .chosen = chosen.tensor(), .passes = passes.tensor()});
    EXPECT_EQ(chosen.values(), (std::vector<int64_t>{11, 20, 32, 40, 50, 64, 70, 80})) << at.name;
    EXPECT_EQ(passes.values(), (std::vector<int64_t>{2, 2, 4, 4, 5, 7, 7, 8})) << at.name;
  }
}

DSV4_DEVICE_TEST(CountExperts, CountsWholePrompts) {
  for (const auto& at : Places(on, CountExperts, CountOnGpu)) {
    constexpr int64_t kLayers = 3, kIds = 24577, kExperts = 384;
    Random random(11);
    GuardBuffer<int32_t> experts({kLayers, kIds}), tokens({kIds / 7});
    for (int32_t& token : tokens.span()) token = 1;
    GuardBuffer<int64_t> chosen({kLayers, kExperts}), passes({kLayers, kExperts});
    std::vector<int64_t> want(kLayers * kExperts), seen(kLayers * kExperts);
    for (int64_t i = 0; i < kLayers * kExperts; ++i) chosen[i] = passes[i] = 0;
    for (int64_t i = 0; i < kLayers * kIds; ++i) {
      experts[i] = static_cast<int32_t>(random.Index(kExperts / 2) * 2);  // odd ones are never chosen
      ++want[static_cast<size_t>(i / kIds * kExperts + experts[i])];
    }
    for (size_t i = 0; i < want.size(); ++i) seen[i] = want[i] > 0 ? 1 : 0;
    at.run({.experts = experts.tensor().i32(), .layer_stride = kIds, .slots = 7, .tokens = tokens.tensor(),
            .chosen = chosen.tensor(), .passes = passes.tensor()});
    EXPECT_EQ(chosen.values(), want) << at.name;
    EXPECT_EQ(passes.values(), seen) << at.name;
  }
}

}  // namespace
}  // namespace dsv4::test
