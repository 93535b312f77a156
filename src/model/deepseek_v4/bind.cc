#include "model/deepseek_v4/bind.h"

#include <utility>

#include "base/str.h"
#include "model/deepseek_v4/bind_tensors.h"

namespace dsv4 {

namespace {

HcWeights BindHc(TensorBinder& in, const Config& c, const std::string& name) {
  const int64_t mixes = (2 + c.hc_mult) * c.hc_mult;
  HcWeights w;
  w.fn = in.PlainMatrix(StrCat(name, "_fn"), mixes, c.hc_mult * c.hidden_size);
  w.base = in.Vector(StrCat(name, "_base"), {mixes});
  w.scale = in.Vector(StrCat(name, "_scale"), {3});
  return w;
}

CompressorWeights BindCompressor(TensorBinder& in, const Config& c, const std::string& name, int64_t ratio,
                                 int64_t dim) {
  const int64_t width = (ratio == 4 ? 2 : 1) * dim;  // ratio 4 pools overlapping windows
  CompressorWeights w;
  w.kv_proj = in.Matrix(StrCat(name, ".wkv"), width, c.hidden_size);
  w.gate_proj = in.Matrix(StrCat(name, ".wgate"), width, c.hidden_size);
  w.slot_bias = in.Vector(StrCat(name, ".ape"), {ratio, width});
  w.norm = in.Vector(StrCat(name, ".norm.weight"), {dim});
  return w;
}

AttentionWeights BindAttention(TensorBinder& in, const Config& c, const std::string& name, LayerKind kind) {
  const int64_t heads_width = c.num_heads * c.head_dim;
  AttentionWeights w;
  w.q_a = in.Matrix(StrCat(name, ".wq_a"), c.q_lora_rank, c.hidden_size);
  w.q_a_norm = in.Vector(StrCat(name, ".q_norm.weight"), {c.q_lora_rank});
  w.q_b = in.Matrix(StrCat(name, ".wq_b"), heads_width, c.q_lora_rank);
  w.kv_proj = in.Matrix(StrCat(name, ".wkv"), c.head_dim, c.hidden_size);
  w.kv_norm = in.Vector(StrCat(name, ".kv_norm.weight"), {c.head_dim});
  w.sink = in.Vector(StrCat(name, ".attn_sink"), {c.num_heads});
  w.o_a = in.Matrix(StrCat(name, ".wo_a"), c.o_groups * c.o_lora_rank, heads_width / c.o_groups);
  w.o_b = in.Matrix(StrCat(name, ".wo_b"), c.hidden_size, c.o_groups * c.o_lora_rank);
  if (kind == LayerKind::kHca)
    w.compressor = BindCompressor(in, c, StrCat(name, ".compressor"), 128, c.head_dim);
  if (kind == LayerKind::kCsa) {
    w.compressor = BindCompressor(in, c, StrCat(name, ".compressor"), 4, c.head_dim);
    const std::string indexer = StrCat(name, ".indexer");
    w.indexer.q_b = in.Matrix(StrCat(indexer, ".wq_b"), c.index_heads * c.index_head_dim, c.q_lora_rank);
    w.indexer.weights_proj = in.Matrix(StrCat(indexer, ".weights_proj"), c.index_heads, c.hidden_size);
    w.indexer.compressor = BindCompressor(in, c, StrCat(indexer, ".compressor"), 4, c.index_head_dim);
  }
  return w;
}

ExpertWeights BindExpert(TensorBinder& in, const Config& c, const std::string& name) {
  ExpertWeights w;
  w.gate = in.Matrix(StrCat(name, ".w1"), c.moe_intermediate, c.hidden_size);
  w.up = in.Matrix(StrCat(name, ".w3"), c.moe_intermediate, c.hidden_size);
  w.down = in.Matrix(StrCat(name, ".w2"), c.hidden_size, c.moe_intermediate);
  return w;
}

// One tensor [E, 2F, D], gate rows first, and one [E, D, F].
std::vector<ExpertWeights> BindStackedExperts(TensorBinder& in, const Config& c, const std::string& name) {
  in.Forbid(StrCat(name, ".0.w1.weight"), "the experts are doubly present, stacked and one by one");
  const auto gate_up = in.Stack(StrCat(name, ".gate_up"), c.num_experts, 2 * c.moe_intermediate,
                                c.hidden_size, 2);
  const auto down = in.Stack(StrCat(name, ".down"), c.num_experts, c.hidden_size, c.moe_intermediate, 1);
  std::vector<ExpertWeights> experts;
  for (size_t e = 0; e < down.size(); ++e) experts.push_back({gate_up[2 * e], gate_up[2 * e + 1], down[e]});
  return experts;
}

MoeWeights BindMoe(TensorBinder& in, const Config& c, const std::string& name, bool hash) {
  MoeWeights w;
  w.router = in.Matrix(StrCat(name, ".gate"), c.num_experts, c.hidden_size);
  if (hash) {
    w.hash_table = in.Ids(StrCat(name, ".gate.tid2eid"), c.vocab_size, c.experts_per_token, c.num_experts);
  } else {
    w.router_bias = in.Vector(StrCat(name, ".gate.bias"), {c.num_experts});
  }
  const std::string experts = StrCat(name, ".experts");
  if (in.Has(StrCat(experts, ".gate_up.weight"))) {
    w.experts = BindStackedExperts(in, c, experts);
  } else {
    w.experts.reserve(static_cast<size_t>(c.num_experts));
    for (int64_t e = 0; e < c.num_experts && in.status().ok(); ++e) {
      w.experts.push_back(BindExpert(in, c, StrCat(experts, ".", e)));
    }
  }
  w.shared = BindExpert(in, c, StrCat(name, ".shared_experts"));
  return w;
}

}  // namespace

Result<Weights> BindWeights(const Config& config, std::shared_ptr<const TensorSource> source,
                            BindReport* report, const BindOptions& options) {
  const Config& c = config;
  TensorBinder in(std::move(source), options);
  Weights w;
  w.embed = in.PlainMatrix("embed.weight", c.vocab_size, c.hidden_size);
  for (int64_t l = 0; l < c.num_layers && in.status().ok(); ++l) {
    const std::string name = StrCat("layers.", l);
    LayerWeights& layer = w.layers.emplace_back();
    layer.hc_attn = BindHc(in, c, StrCat(name, ".hc_attn"));
    layer.attn_norm = in.Vector(StrCat(name, ".attn_norm.weight"), {c.hidden_size});
    layer.attn = BindAttention(in, c, StrCat(name, ".attn"), c.kind(l));
    layer.hc_ffn = BindHc(in, c, StrCat(name, ".hc_ffn"));
    layer.ffn_norm = in.Vector(StrCat(name, ".ffn_norm.weight"), {c.hidden_size});
    layer.moe = BindMoe(in, c, StrCat(name, ".ffn"), c.is_hash(l));
  }
  w.hc_head.fn = in.PlainMatrix("hc_head_fn", c.hc_mult, c.hc_mult * c.hidden_size);
  w.hc_head.base = in.Vector("hc_head_base", {c.hc_mult});
  w.hc_head.scale = in.Vector("hc_head_scale", {1});
  w.norm = in.Vector("norm.weight", {c.hidden_size});
  w.head = in.Matrix("head", c.vocab_size, c.hidden_size);

  BindReport unwanted;
  DSV4_RETURN_IF_ERROR(in.Finish(report != nullptr ? *report : unwanted));
  w.storage = in.storage();
  return w;
}

}  // namespace dsv4
