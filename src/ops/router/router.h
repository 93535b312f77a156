// Picks A experts for every token and weights them (docs/dev/model.md), in float32:
//   s = sqrt(softplus(logits))
//   learned layer: the A largest s + bias, ties to the lower expert; hash layer: hash_table[token]
//   weights = s[chosen] / sum(s[chosen]) * scaling_factor: unbiased scores, also in hash layers
//   padding rows (ops/idle_row.h), whatever their logits: every choice is kNoExpert, with weight 0
#pragma once

#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct RouterArgs {
  Tensor logits;      // f32 [T, E]
  Tensor bias;        // f32 [E]; empty in hash layers
  Tensor hash_table;  // i32 [V, A]; empty in learned layers
  Tensor tokens;      // i32 [T]; may be empty in learned layers if there is no padding row
  float scaling_factor = 1;
  int32_t always = -1;  // an expert that every token gets in addition, with weight 1; -1: none
  Tensor experts;       // i32 [T, A], best first (hash layers: table order); with `always` [T, 1 + A], that one first
  Tensor weights;       // f32, the same shape
  // If RouterMultiplies: the op first computes the logits, x w^T.
  Tensor x;       // f32 [T, K]
  QuantTensor w;  // [E, K]
};
inline constexpr int64_t kMaxRoutedOnGpu = 1024, kMaxChosenOnGpu = 32;  // E; choices of a token

// Whether the op also computes its logits from `x` and `w`, with linear's bits: on a GPU for a few tokens. That saves a
// launch.
bool RouterMultiplies(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w, int64_t chosen);
std::string RouterImplementation(const ExecContext& ctx, bool multiplies);
void Router(const ExecContext& ctx, const RouterArgs& args);
OpImplementations DescribeRouter(const ExecContext& ctx);

}  // namespace dsv4
