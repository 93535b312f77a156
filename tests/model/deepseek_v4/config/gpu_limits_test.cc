#include "model/deepseek_v4/config/gpu_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsv4::deepseek_v4 {
namespace {

using ::testing::HasSubstr;

// Flash's shapes.
Config Flash() {
  Config c;
  c.hidden_size = 4096, c.num_heads = 64, c.head_dim = 512, c.rope_dim = 64, c.q_lora_rank = 1024, c.o_groups = 8,
  c.o_lora_rank = 1024;
  c.vocab_size = 129280, c.index_heads = 64;
  c.moe_intermediate = 2048, c.num_experts = 256, c.num_shared_experts = 1, c.experts_per_token = 6,
  c.index_head_dim = 128;
  c.compress_ratios = {0, 4, 128};
  return c;
}

TEST(GpuLimits, TheReleasedShapesAreWithin) {
  EXPECT_TRUE(CheckGpuLimits(Flash()).ok());
  Config pro = Flash();
  pro.hidden_size = 7168, pro.num_heads = 128, pro.q_lora_rank = 1536, pro.o_groups = 16, pro.moe_intermediate = 3072,
  pro.num_experts = 384;
  EXPECT_TRUE(CheckGpuLimits(pro).ok());
}

TEST(GpuLimits, WhatIsBeyondIsNamed) {
  const auto refused = [](auto change, const std::string& what, const std::string& value, const std::string& most) {
    Config c = Flash();
    change(c);
    const Status status = CheckGpuLimits(c);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << what;
    for (const std::string& part : {what, value, most, std::string("--device cpu")})
      EXPECT_THAT(status.message(), HasSubstr(part));
  };
  refused([](Config& c) { c.head_dim = 1088; }, "head_dim", "1088", "1024");
  refused([](Config& c) { c.rope_dim = 514; }, "qk_rope_head_dim", "514", "512");
  refused([](Config& c) { c.index_head_dim = 1024; }, "index_head_dim", "1024", "512");
  refused([](Config& c) { c.num_experts = 1024; }, "n_routed_experts", "1024", "1023");
  refused([](Config& c) { c.experts_per_token = 33; }, "num_experts_per_tok", "33", "32");
  refused([](Config& c) { c.moe_intermediate = 131136; }, "moe_intermediate_size", "131136", "131072");
  refused([](Config& c) { c.vocab_size = 1048561; }, "vocab_size", "1048561", "1048560");
  refused([](Config& c) { c.num_heads = 2048; }, "num_attention_heads * head_dim + index_n_heads * index_head_dim",
          "1056768", "1048560");
  refused([](Config& c) { c.num_heads = 1024, c.o_groups = 2; }, "num_attention_heads * head_dim / o_groups", "262144",
          "131072");
  refused([](Config& c) { c.o_lora_rank = 16448; }, "o_groups * o_lora_rank", "131584", "131072");
}

TEST(GpuLimits, TheIndexerCountsOnlyWhereThereIsOne) {
  Config c = Flash();
  c.index_head_dim = 1024;
  c.compress_ratios = {0, 128};
  EXPECT_TRUE(CheckGpuLimits(c).ok());
}

}  // namespace
}  // namespace dsv4::deepseek_v4
