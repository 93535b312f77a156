#include "engine/memory/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4 {
namespace {

// The schedules and geometry of the released models (docs/dev/model.md).
KvSpec Released(bool pro, KvDtype kv, IndexDtype index) {
  KvSpec spec;
  spec.compress_ratios = pro ? std::vector<int64_t>{128, 128} : std::vector<int64_t>{0, 0};
  for (int i = 0; i < (pro ? 29 : 20); ++i) spec.compress_ratios.insert(spec.compress_ratios.end(), {4, 128});
  spec.compress_ratios.push_back(4);
  spec.window = 128;
  spec.head_dim = 512;
  spec.rope_dim = 64;
  spec.index_head_dim = 128;
  spec.kv_dtype = kv;
  spec.index_dtype = index;
  return spec;
}

// The table of docs/dev/formats.md.
TEST(Plan, KvBytesOfTheReleasedModels) {
  const KvBytes flash = KvFootprint(Released(false, KvDtype::kFp8, IndexDtype::kFp4));
  EXPECT_DOUBLE_EQ(flash.per_token, 3514.25);
  EXPECT_EQ(flash.fixed, 43 * 136 * 584 + 14581760);
  const KvBytes pro = KvFootprint(Released(true, KvDtype::kFp8, IndexDtype::kFp4));
  EXPECT_NEAR(pro.per_token, 5031.44, 0.005);
  EXPECT_EQ(pro.fixed, 61 * 136 * 584 + 22183936);
  EXPECT_DOUBLE_EQ(KvFootprint(Released(false, KvDtype::kBf16, IndexDtype::kBf16)).per_token, 6880);
  EXPECT_DOUBLE_EQ(KvFootprint(Released(true, KvDtype::kBf16, IndexDtype::kBf16)).per_token, 9848);
  EXPECT_DOUBLE_EQ(KvFootprint(Released(false, KvDtype::kF32, IndexDtype::kF32)).per_token, 2 * 6880);
}

TEST(Plan, ContextThatFits) {
  PlanInputs in;
  in.kv = Released(false, KvDtype::kFp8, IndexDtype::kFp4);
  in.weight_bytes = 1 << 20;
  in.max_context = 1048576;
  EXPECT_EQ(MakeMemoryPlan(in).max_context_that_fits, 1048576) << "unknown memory";
  const int64_t fixed = KvFootprint(in.kv).fixed;
  in.available_bytes = (1 << 20) + fixed + 35143;  // ten tokens
  EXPECT_EQ(MakeMemoryPlan(in).max_context_that_fits, 10);
  in.activation_bytes = 1;
  in.available_bytes = (1 << 20) + fixed;
  EXPECT_EQ(MakeMemoryPlan(in).max_context_that_fits, 0);
  in.available_bytes = int64_t{1} << 40;
  EXPECT_EQ(MakeMemoryPlan(in).max_context_that_fits, 1048576);
  EXPECT_DOUBLE_EQ(MakeMemoryPlan(in).kv_bytes_per_1k_tokens, 3514250);
}

TEST(Plan, SlidingLayersAloneFitAnyContext) {
  PlanInputs in;
  in.kv = Released(false, KvDtype::kFp8, IndexDtype::kFp4);
  in.kv.compress_ratios = {0, 0};
  in.available_bytes = 1 << 20;
  in.max_context = 4096;
  EXPECT_EQ(MakeMemoryPlan(in).max_context_that_fits, 4096);
}

TEST(Plan, WhatDoesNotFitIsRefusedWithTheNumbers) {
  PlanInputs in;
  in.kv = Released(false, KvDtype::kFp8, IndexDtype::kFp4);
  in.weight_bytes = 1000000;
  in.scratch_bytes = 2000;
  in.activation_bytes = 300;
  in.max_context = 4096;
  const int64_t needed = 1000000 + 2000 + 300 + KvFootprint(in.kv).fixed + 512;
  in.available_bytes = needed;
  EXPECT_TRUE(CheckPlan(MakeMemoryPlan(in), 512, "use less").ok());
  in.available_bytes = needed - 1;
  MemoryPlan plan = MakeMemoryPlan(in);
  plan.device = "a small GPU";
  const Status status = CheckPlan(plan, 512, "use less");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  for (const std::string& part :
       {std::string("a small GPU"), std::to_string(needed), std::to_string(needed - 1), std::string("use less")}) {
    EXPECT_THAT(status.message(), ::testing::HasSubstr(part));
  }
  in.available_bytes = needed;
  // the loader's buffers are freed before there are activations
  in.loading_bytes = 300 + KvFootprint(in.kv).fixed + 513;
  EXPECT_FALSE(CheckPlan(MakeMemoryPlan(in), 512, "use less").ok());
  in.available_bytes = 0;
  EXPECT_TRUE(CheckPlan(MakeMemoryPlan(in), 512, "use less").ok()) << "unknown memory";
}

// One of several GPUs with different amounts of memory.
TEST(Plan, OfSeveralGpusErrorsNameTheFullest) {
  MemoryPlan plan{};
  plan.device = "NVIDIA H200, 132 SMs";
  plan.available_bytes = 1000, plan.weight_bytes = 5000, plan.gpu = 1;
  EXPECT_THAT(CheckPlan(plan, 0, "use more").message(), testing::HasSubstr("does not fit NVIDIA H200, 132 SMs:"));
  plan.devices = 2;
  EXPECT_THAT(CheckPlan(plan, 0, "use more").message(),
              testing::HasSubstr("does not fit GPU 1 (NVIDIA H200, 132 SMs):"));
}

}  // namespace
}  // namespace dsv4
