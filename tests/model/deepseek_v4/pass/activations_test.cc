// Buffers of a step: which of them share memory.
#include "model/deepseek_v4/pass/activations.h"

#include <gtest/gtest.h>

#include "model/deepseek_v4/load/synthetic.h"

namespace dsv4::deepseek_v4 {
namespace {

bool Meet(const uint8_t* a, int64_t a_bytes, const uint8_t* b, int64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}
bool Meet(const Tensor& a, const Room& b) {
  return Meet(static_cast<const uint8_t*>(a.data), a.num_bytes(), b.data, b.bytes);
}
bool Meet(const Tensor& a, const Tensor& b) { return Meet(a, Room{static_cast<uint8_t*>(b.data), b.num_bytes()}); }

TEST(Activations, WhatIsNeverUsedTogetherSharesMemory) {
  Config config = SyntheticConfig({.shape = "nano"}).value();
  for (const int64_t heads : {1, 4, 64}) {  // either of two buffers that share memory may be the larger one
    config.num_heads = heads;
    const Activations a(config, 64, 8);
    EXPECT_TRUE(Meet(a.moe.hidden, a.attention.q));
    EXPECT_TRUE(Meet(a.moe.outputs, a.attention.heads));
    EXPECT_TRUE(Meet(a.attention.index_q, a.attention.heads));
    EXPECT_EQ(a.attention.o_lora.data, a.attention.q.data);
    // An op reads one of them while it writes the other.
    EXPECT_FALSE(Meet(a.moe.hidden, a.moe.outputs));
    EXPECT_FALSE(Meet(a.attention.index_q, a.attention.q));
    EXPECT_FALSE(Meet({a.attention.q.data, DType::kF32, {a.attention.q.bytes / 4}}, a.attention.heads));
    for (const Tensor* t : {&a.x, &a.y, &a.streams, &a.moe.shared_gate, &a.moe.routing_weights, &a.expert_ids}) {
      EXPECT_FALSE(Meet(a.moe.hidden, *t));
      EXPECT_FALSE(Meet(a.moe.outputs, *t));
    }
    for (const Room* room : {&a.attention.rounded, &a.moe.rounded}) {
      EXPECT_FALSE(Meet(a.moe.outputs, *room)) << "the bridge reads the one while it writes the other";
      EXPECT_FALSE(Meet(a.moe.hidden, *room));
    }
  }
}

}  // namespace
}  // namespace dsv4::deepseek_v4
