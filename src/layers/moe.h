// Mixture of experts (reference/model.md 2.9): router, routed experts, shared expert.
#pragma once

#include <vector>

#include "ops/experts/experts.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

using ExpertWeights = ExpertMatrices;  // official: gate = w1, up = w3, down = w2

struct MoeWeights {
  QuantTensor router;    // [E, D]   official: gate.weight
  Tensor router_bias;    // f32 [E]: for the choice only; empty in hash layers
  Tensor hash_table;     // i32 [V, A]: expert ids by token; empty in learned layers
  std::vector<ExpertWeights> experts;  // [E]
  ExpertWeights shared;
};

}  // namespace dsv4
