// Every tensor of the model, nested like the model. These are views; `Weights::storage` owns the bytes (mapped files
// and small vectors widened to f32, or the memory of a device). Letters of shapes: docs/dev/glossary.md.
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
  HcWeights hc_attn;  // mixes around the attention
  Tensor attn_norm;   // f32 [D]
  AttentionWeights attn;
  HcWeights hc_ffn;  // mixes around the experts
  Tensor ffn_norm;   // f32 [D]
  MoeWeights moe;
};

// The weights of a draft module outside of its stages, which are layers (config.h, DraftConfig).
struct DraftWeights {
  Tensor embed_norm;        // f32 [D]                 MTP, official: enorm
  Tensor hidden_norm;       // f32 [D]                 MTP, official: hnorm
  QuantTensor embed_proj;   // [D, D]                  MTP, official: e_proj
  QuantTensor hidden_proj;  // [D, D]                  MTP, official: h_proj
  QuantTensor main_proj;    // [D, targets * D]        DSpark
  Tensor main_norm;         // f32 [D]                 DSpark
  HcHeadWeights hc_head;
  Tensor norm;             // f32 [D]
  QuantTensor embed;       // [V, D] bf16 | f32       empty: the model's
  QuantTensor head;        // [V, D]                  empty: the model's
  QuantTensor markov_in;   // [V, rank] bf16 | f32    DSpark, official: markov_w1
  QuantTensor markov_out;  // [V, rank]               DSpark, official: markov_w2
  QuantTensor confidence;  // [1, D + rank]           DSpark
};

struct Weights {
  QuantTensor embed;                 // [V, D] bf16 | f32
  std::vector<LayerWeights> layers;  // the model's layers, then the stages of its draft module
  HcHeadWeights hc_head;
  Tensor norm;                  // f32 [D]
  QuantTensor head;             // [V, D], any format
  Tensor plain_frequencies;     // f32 [Dr/2]: RoPE of layers of ratio 0
  Tensor compress_frequencies;  // f32 [Dr/2]: RoPE of the other layers
  int64_t draft_stages = 0;
  DraftWeights draft;
  std::shared_ptr<const void> storage;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()) - draft_stages; }  // L
};

}  // namespace dsv4::deepseek_v4
