// Picks A experts for every token and weights them (docs/dev/model.md), in float32:
//   s = sqrt(softplus(logits))
//   learned layer: the A largest s + bias, ties to the lower expert; hash layer: hash_table[token]
//   idle rows (ops/idle_row.h), whatever their logits: kNoExpert in every place, with weight 0
//   weights = s[chosen] / sum(s[chosen]) * scaling_factor: unbiased scores, in hash layers too
#pragma once

#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct RouterArgs {
  Tensor logits;      // f32 [T, E]
  Tensor bias;        // f32 [E]; empty in hash layers
  Tensor hash_table;  // i32 [V, A]; empty in learned layers
  Tensor tokens;      // i32 [T]; may be empty in learned layers, where no row is idle then
  float scaling_factor = 1;
  int32_t always = -1;  // an expert that every token has besides the chosen ones, with weight 1; -1: none
  Tensor experts;       // i32 [T, A], best first (table order in hash layers); with `always` [T, 1 + A], that one first
  Tensor weights;       // f32, likewise
  // Where RouterMultiplies says so: the logits are yet to be made, x w^T.
  Tensor x;       // f32 [T, K]
  QuantTensor w;  // [E, K]
};
inline constexpr int64_t kMaxRoutedOnGpu = 1024, kMaxChosenOnGpu = 32;  // experts; of a token

// Whether the op makes its logits of `x` and `w`, too, with linear's bits: on a GPU for a few tokens. A launch less.
bool RouterMultiplies(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w, int64_t chosen);
std::string RouterImplementation(const ExecContext& ctx, bool multiplies);
void Router(const ExecContext& ctx, const RouterArgs& args);
OpImplementations DescribeRouter(const ExecContext& ctx);

}  // namespace dsv4
