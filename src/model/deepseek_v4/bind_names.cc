#include "model/deepseek_v4/bind_names.h"

#include <utility>

#include "base/str.h"

namespace dsv4 {

namespace {

using Rename = std::pair<std::string_view, std::string_view>;  // prefix in the file, official prefix

constexpr Rename kGlobalRenames[] = {
    {"embed_tokens.", "embed."},
    {"lm_head.", "head."},
    {"hc_head.hc_", "hc_head_"},
};

// Below `layers.N.`; the first prefix that fits wins.
constexpr Rename kLayerRenames[] = {
    {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "ffn_norm."},
    {"attn_hc.", "hc_attn_"},
    {"ffn_hc.", "hc_ffn_"},
    {"self_attn.sinks", "attn.attn_sink"},
    {"self_attn.q_a_proj.", "attn.wq_a."},
    {"self_attn.q_a_norm.", "attn.q_norm."},
    {"self_attn.q_b_proj.", "attn.wq_b."},
    {"self_attn.kv_proj.", "attn.wkv."},
    {"self_attn.kv_norm.", "attn.kv_norm."},
    {"self_attn.o_a_proj.", "attn.wo_a."},
    {"self_attn.o_b_proj.", "attn.wo_b."},
    {"self_attn.compressor.indexer.q_b_proj.", "attn.indexer.wq_b."},
    {"self_attn.compressor.indexer.scorer.weights_proj.", "attn.indexer.weights_proj."},
    {"self_attn.compressor.indexer.weights_proj.", "attn.indexer.weights_proj."},
    {"self_attn.compressor.indexer.kv_proj.", "attn.indexer.compressor.wkv."},
    {"self_attn.compressor.indexer.gate_proj.", "attn.indexer.compressor.wgate."},
    {"self_attn.compressor.indexer.position_bias", "attn.indexer.compressor.ape"},
    {"self_attn.compressor.indexer.kv_norm.", "attn.indexer.compressor.norm."},
    {"self_attn.compressor.kv_proj.", "attn.compressor.wkv."},
    {"self_attn.compressor.gate_proj.", "attn.compressor.wgate."},
    {"self_attn.compressor.position_bias", "attn.compressor.ape"},
    {"self_attn.compressor.kv_norm.", "attn.compressor.norm."},
    {"mlp.gate.e_score_correction_bias", "ffn.gate.bias"},
    {"mlp.gate.", "ffn.gate."},
    {"mlp.shared_experts.gate_proj.", "ffn.shared_experts.w1."},
    {"mlp.shared_experts.up_proj.", "ffn.shared_experts.w3."},
    {"mlp.shared_experts.down_proj.", "ffn.shared_experts.w2."},
};

// Stacked experts are parameters, not modules: `gate_up_proj`, `gate_up_proj_scale_inv`.
constexpr Rename kStackedRenames[] = {
    {"mlp.experts.gate_up_proj", "ffn.experts.gate_up"},
    {"mlp.experts.down_proj", "ffn.experts.down"},
};
constexpr Rename kStackedEndings[] = {
    {"", ".weight"},
    {"_scale_inv", ".scale"},
    {"_weight_scale_inv", ".scale"},
    {"_weight_scale", ".weight_scale"},
    {"_weight_scale_2", ".weight_scale_2"},
    {"_input_scale", ".input_scale"},
};

constexpr Rename kExpertRenames[] = {
    // below `mlp.experts.E.`
    {"gate_proj.", "w1."},
    {"up_proj.", "w3."},
    {"down_proj.", "w2."},
};

bool Consume(std::string_view& s, std::string_view prefix) {
  if (!s.starts_with(prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}

// Removes `123.` from the front.
bool ConsumeNumber(std::string_view& s) {
  const size_t dot = s.find_first_not_of("0123456789");
  if (dot == 0 || dot == std::string_view::npos || s[dot] != '.') return false;
  s.remove_prefix(dot + 1);
  return true;
}

// `rest` is what follows `layers.N.`; empty when it is no name of transformers.
std::string RenamedBelowLayer(std::string_view rest) {
  for (const auto& [from, to] : kLayerRenames) {
    if (rest.starts_with(from)) return StrCat(to, rest.substr(from.size()));
  }
  for (const auto& [from, to] : kStackedRenames) {
    if (!rest.starts_with(from)) continue;
    for (const auto& [ending, official] : kStackedEndings) {
      if (rest.substr(from.size()) == ending) return StrCat(to, official);
    }
    return StrCat(to, rest.substr(from.size()));
  }
  std::string_view below = rest;
  if (Consume(below, "mlp.experts.")) {
    const std::string_view number = below;
    if (ConsumeNumber(below)) {
      for (const auto& [from, to] : kExpertRenames) {
        if (!below.starts_with(from)) continue;
        return StrCat("ffn.experts.", number.substr(0, number.size() - below.size()), to,
                      below.substr(from.size()));
      }
    }
  }
  return {};
}

std::string Renamed(std::string_view name) {
  std::string_view rest = name;
  if (Consume(rest, "layers.")) {
    if (!ConsumeNumber(rest)) return {};
    const std::string below = RenamedBelowLayer(rest);
    return below.empty() ? below : StrCat(name.substr(0, name.size() - rest.size()), below);
  }
  for (const auto& [from, to] : kGlobalRenames) {
    if (name.starts_with(from)) return StrCat(to, name.substr(from.size()));
  }
  return {};
}

}  // namespace

std::string_view OfficialName(std::string_view name, std::deque<std::string>& storage) {
  constexpr std::string_view kScaleInv = ".weight_scale_inv";
  Consume(name, "model.");
  std::string renamed = Renamed(name);
  const std::string_view now = renamed.empty() ? name : std::string_view(renamed);
  if (now.ends_with(kScaleInv))
    return storage.emplace_back(StrCat(now.substr(0, now.size() - kScaleInv.size()), ".scale"));
  return renamed.empty() ? name : storage.emplace_back(std::move(renamed));
}

bool IsDraftName(std::string_view official_name) { return official_name.starts_with("mtp."); }

bool IsCompressedTensorsName(std::string_view official_name) {
  return official_name.ends_with(".weight_packed") || official_name.ends_with(".weight_global_scale") ||
         official_name.ends_with(".input_global_scale");
}

}  // namespace dsv4
