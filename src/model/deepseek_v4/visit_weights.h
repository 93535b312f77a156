// Every matrix and vector of a model's weights, in the order of the model.
#pragma once

#include <string>

#include "base/str.h"
#include "model/deepseek_v4/weights.h"

namespace dsv4 {

// Which one is visited: its official name, put together only where somebody asks for it.
struct WeightName {
  const char* part;     // "attn.wq_a.weight"; null: computed, in no file
  int64_t layer = -1;   // -1: of no layer
  int64_t expert = -1;  // -1: of no routed expert

  std::string ToString() const {
    if (layer < 0) return part;
    return expert < 0 ? StrCat("layers.", layer, ".", part) : StrCat("layers.", layer, ".ffn.experts.", expert, ".", part);
  }
};

// Calls matrix(WeightName, QuantTensor&, keep_rows) and vector(WeightName, Tensor&) for everything in `w`, what is not
// there included; keep_rows: kernels read it by rows on every device.
template <typename W, typename Matrix, typename Vector>
void VisitNamedWeights(W& w, const Matrix& matrix, const Vector& vector) {
  matrix(WeightName{"embed.weight"}, w.embed, true);
  int64_t l = -1;
  for (auto& layer : w.layers) {
    ++l;
    const auto m = [&](const char* part, auto& value) { matrix(WeightName{part, l}, value, false); };
    const auto v = [&](const char* part, auto& value) { vector(WeightName{part, l}, value); };
    matrix(WeightName{"hc_attn_fn", l}, layer.hc_attn.fn, true);
    v("hc_attn_base", layer.hc_attn.base);
    v("hc_attn_scale", layer.hc_attn.scale);
    v("attn_norm.weight", layer.attn_norm);
    m("attn.wq_a.weight", layer.attn.q_a);
    v("attn.q_norm.weight", layer.attn.q_a_norm);
    m("attn.wq_b.weight", layer.attn.q_b);
    m("attn.wkv.weight", layer.attn.kv_proj);
    v("attn.kv_norm.weight", layer.attn.kv_norm);
    v("attn.attn_sink", layer.attn.sink);
    m("attn.wo_a.weight", layer.attn.o_a);
    m("attn.wo_b.weight", layer.attn.o_b);
    m("attn.compressor.wkv.weight", layer.attn.compressor.kv_proj);
    m("attn.compressor.wgate.weight", layer.attn.compressor.gate_proj);
    v("attn.compressor.ape", layer.attn.compressor.slot_bias);
    v("attn.compressor.norm.weight", layer.attn.compressor.norm);
    m("attn.indexer.wq_b.weight", layer.attn.indexer.q_b);
    m("attn.indexer.weights_proj.weight", layer.attn.indexer.weights_proj);
    m("attn.indexer.compressor.wkv.weight", layer.attn.indexer.compressor.kv_proj);
    m("attn.indexer.compressor.wgate.weight", layer.attn.indexer.compressor.gate_proj);
    v("attn.indexer.compressor.ape", layer.attn.indexer.compressor.slot_bias);
    v("attn.indexer.compressor.norm.weight", layer.attn.indexer.compressor.norm);
    matrix(WeightName{"hc_ffn_fn", l}, layer.hc_ffn.fn, true);
    v("hc_ffn_base", layer.hc_ffn.base);
    v("hc_ffn_scale", layer.hc_ffn.scale);
    v("ffn_norm.weight", layer.ffn_norm);
    m("ffn.gate.weight", layer.moe.router);
    v("ffn.gate.bias", layer.moe.router_bias);
    v("ffn.gate.tid2eid", layer.moe.hash_table);
    int64_t e = -1;
    for (auto& expert : layer.moe.experts) {
      ++e;
      matrix(WeightName{"w1.weight", l, e}, expert.gate, false);
      matrix(WeightName{"w3.weight", l, e}, expert.up, false);
      matrix(WeightName{"w2.weight", l, e}, expert.down, false);
    }
    m("ffn.shared_experts.w1.weight", layer.moe.shared.gate);
    m("ffn.shared_experts.w3.weight", layer.moe.shared.up);
    m("ffn.shared_experts.w2.weight", layer.moe.shared.down);
  }
  matrix(WeightName{"hc_head_fn"}, w.hc_head.fn, true);
  vector(WeightName{"hc_head_base"}, w.hc_head.base);
  vector(WeightName{"hc_head_scale"}, w.hc_head.scale);
  vector(WeightName{"norm.weight"}, w.norm);
  matrix(WeightName{"head.weight"}, w.head, false);
  vector(WeightName{nullptr}, w.plain_frequencies);
  vector(WeightName{nullptr}, w.compress_frequencies);
}

// The same without names: matrix(QuantTensor&, keep_rows), vector(Tensor&).
template <typename W, typename Matrix, typename Vector>
void VisitWeights(W& w, const Matrix& matrix, const Vector& vector) {
  VisitNamedWeights(
      w, [&](const WeightName&, auto& m, bool keep_rows) { matrix(m, keep_rows); },
      [&](const WeightName&, auto& v) { vector(v); });
}

}  // namespace dsv4
