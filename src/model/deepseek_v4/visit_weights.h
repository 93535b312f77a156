// Every matrix and vector of a model's weights, in the order of the model.
#pragma once

#include "model/deepseek_v4/weights.h"

namespace dsv4 {

// Calls matrix(QuantTensor&, keep_rows) and vector(Tensor&) for everything in `w`, what is not there included; keep_rows:
// kernels read it by rows on every device.
template <typename W, typename Matrix, typename Vector>
void VisitWeights(W& w, const Matrix& matrix, const Vector& vector) {
  const auto hc = [&](auto& site) {
    matrix(site.fn, true);
    vector(site.base);
    vector(site.scale);
  };
  const auto expert = [&](auto& e) {
    matrix(e.gate, false);
    matrix(e.up, false);
    matrix(e.down, false);
  };
  const auto compressor = [&](auto& c) {
    matrix(c.kv_proj, false);
    matrix(c.gate_proj, false);
    vector(c.slot_bias);
    vector(c.norm);
  };
  matrix(w.embed, true);
  for (auto& layer : w.layers) {
    hc(layer.hc_attn);
    vector(layer.attn_norm);
    matrix(layer.attn.q_a, false);
    vector(layer.attn.q_a_norm);
    matrix(layer.attn.q_b, false);
    matrix(layer.attn.kv_proj, false);
    vector(layer.attn.kv_norm);
    vector(layer.attn.sink);
    matrix(layer.attn.o_a, false);
    matrix(layer.attn.o_b, false);
    compressor(layer.attn.compressor);
    matrix(layer.attn.indexer.q_b, false);
    matrix(layer.attn.indexer.weights_proj, false);
    compressor(layer.attn.indexer.compressor);
    hc(layer.hc_ffn);
    vector(layer.ffn_norm);
    matrix(layer.moe.router, false);
    vector(layer.moe.router_bias);
    vector(layer.moe.hash_table);
    for (auto& e : layer.moe.experts) expert(e);
    expert(layer.moe.shared);
  }
  hc(w.hc_head);
  vector(w.norm);
  matrix(w.head, false);
  vector(w.plain_frequencies);
  vector(w.compress_frequencies);
}

}  // namespace dsv4
