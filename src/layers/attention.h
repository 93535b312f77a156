// Attention of the three layer kinds (reference/model.md 2.2 to 2.8).
#pragma once

#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

// coff = 2 for ratio 4 (overlapping windows), 1 for ratio 128. d = Dh for the main compressor, Di in the indexer.
struct CompressorWeights {
  QuantTensor kv_proj;    // [coff*d, D]   official: wkv
  QuantTensor gate_proj;  // [coff*d, D]   official: wgate
  Tensor slot_bias;       // f32 [m, coff*d]   official: ape
  Tensor norm;            // f32 [d]
};

struct IndexerWeights {
  QuantTensor q_b;           // [Ni*Di, Rq]
  QuantTensor weights_proj;  // [Ni, D]
  CompressorWeights compressor;
};

struct AttentionWeights {
  QuantTensor q_a;       // [Rq, D]
  Tensor q_a_norm;       // f32 [Rq]
  QuantTensor q_b;       // [N*Dh, Rq]
  QuantTensor kv_proj;   // [Dh, D]
  Tensor kv_norm;        // f32 [Dh]
  Tensor sink;           // f32 [N]
  QuantTensor o_a;       // [G*Ro, N*Dh/G]: rows g*Ro .. (g+1)*Ro-1 belong to group g
  QuantTensor o_b;       // [D, G*Ro]
  CompressorWeights compressor;  // empty when the ratio is 0
  IndexerWeights indexer;        // CSA layers only
};

}  // namespace dsv4
