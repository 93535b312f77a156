// Every tensor of the model, nested like the model. Views only: the bytes belong to `Weights::storage`
// (mapped files, and small vectors widened to f32; or the memory of a device). Shapes in letters: docs/glossary.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layers/attention.h"
#include "layers/hyper_connection.h"
#include "layers/moe.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4::deepseek_v4 {

struct LayerWeights {
  HcWeights hc_attn;        // mixes around the attention
  Tensor attn_norm;         // f32 [D]
  AttentionWeights attn;
  HcWeights hc_ffn;         // mixes around the experts
  Tensor ffn_norm;          // f32 [D]
  MoeWeights moe;
};

struct Weights {
  QuantTensor embed;        // [V, D] bf16 | f32
  std::vector<LayerWeights> layers;
  HcHeadWeights hc_head;
  Tensor norm;              // f32 [D]
  QuantTensor head;         // [V, D], any format
  Tensor plain_frequencies;     // f32 [Dr/2]: RoPE of layers of ratio 0
  Tensor compress_frequencies;  // f32 [Dr/2]: RoPE of the others
  std::shared_ptr<const void> storage;
};

}  // namespace dsv4::deepseek_v4
