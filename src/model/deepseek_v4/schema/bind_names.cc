#include "model/deepseek_v4/schema/bind_names.h"

#include <span>
#include <utility>

#include "base/str.h"

namespace dsv4::deepseek_v4 {

namespace {

// Another spelling of one or more components of a name. Numbers are N in `after`, and a draft module's `mtp` is
// `layers`.
struct Spelling {
  std::string_view after;  // the official components before it
  std::string_view found, official;
};
constexpr std::string_view kTop = "", kLayer = "layers.N.", kAttn = "layers.N.attn.",
                           kCompressor = "layers.N.attn.compressor.", kIndexer = "layers.N.attn.indexer.",
                           kIndexCompressor = "layers.N.attn.indexer.compressor.", kRouter = "layers.N.ffn.gate.",
                           kShared = "layers.N.ffn.shared_experts.", kExperts = "layers.N.ffn.experts.",
                           kOneExpert = "layers.N.ffn.experts.N.";
// The names of transformers and llm-compressor. Every release mixes them with official names in another way.
constexpr Spelling kSpellings[] = {
    {kTop, "embed_tokens", "embed"},
    {kTop, "lm_head", "head"},
    {kTop, "hc_head.hc_fn", "hc_head_fn"},
    {kTop, "hc_head.hc_base", "hc_head_base"},
    {kTop, "hc_head.hc_scale", "hc_head_scale"},
    {kLayer, "self_attn", "attn"},
    {kLayer, "mlp", "ffn"},
    {kLayer, "input_layernorm", "attn_norm"},
    {kLayer, "post_attention_layernorm", "ffn_norm"},
    {kLayer, "attn_hc.fn", "hc_attn_fn"},
    {kLayer, "attn_hc.base", "hc_attn_base"},
    {kLayer, "attn_hc.scale", "hc_attn_scale"},
    {kLayer, "ffn_hc.fn", "hc_ffn_fn"},
    {kLayer, "ffn_hc.base", "hc_ffn_base"},
    {kLayer, "ffn_hc.scale", "hc_ffn_scale"},
    {kLayer, "hc_head.hc_fn", "hc_head_fn"},  // these and the next ones: of draft modules
    {kLayer, "hc_head.hc_base", "hc_head_base"},
    {kLayer, "hc_head.hc_scale", "hc_head_scale"},
    {kLayer, "lm_head", "head"},
    {kLayer, "shared_head.head", "head"},
    {kLayer, "shared_head.norm", "norm"},
    {kLayer, "embed_tokens", "emb.tok_emb"},
    {kAttn, "sinks", "attn_sink"},
    {kAttn, "q_a_proj", "wq_a"},
    {kAttn, "q_a_norm", "q_norm"},
    {kAttn, "q_b_proj", "wq_b"},
    {kAttn, "kv_proj", "wkv"},
    {kAttn, "norm", "kv_norm"},
    {kAttn, "o_a_proj", "wo_a"},
    {kAttn, "o_b_proj", "wo_b"},
    {kAttn, "compressor.indexer", "indexer"},
    {kCompressor, "kv_proj", "wkv"},
    {kCompressor, "gate_proj", "wgate"},
    {kCompressor, "position_bias", "ape"},
    {kCompressor, "kv_norm", "norm"},
    {kIndexer, "q_b_proj", "wq_b"},
    {kIndexer, "scorer.weights_proj", "weights_proj"},
    {kIndexer, "kv_proj", "compressor.wkv"},
    {kIndexer, "wkv", "compressor.wkv"},
    {kIndexer, "gate_proj", "compressor.wgate"},
    {kIndexer, "wgate", "compressor.wgate"},
    {kIndexer, "position_bias", "compressor.ape"},
    {kIndexer, "ape", "compressor.ape"},
    {kIndexer, "kv_norm", "compressor.norm"},
    {kIndexer, "norm", "compressor.norm"},
    {kIndexCompressor, "kv_proj", "wkv"},
    {kIndexCompressor, "gate_proj", "wgate"},
    {kIndexCompressor, "position_bias", "ape"},
    {kIndexCompressor, "kv_norm", "norm"},
    {kRouter, "e_score_correction_bias", "bias"},
    {kShared, "gate_proj", "w1"},
    {kShared, "wgate", "w1"},
    {kShared, "up_proj", "w3"},
    {kShared, "down_proj", "w2"},
    {kOneExpert, "gate_proj", "w1"},
    {kOneExpert, "wgate", "w1"},
    {kOneExpert, "up_proj", "w3"},
    {kOneExpert, "down_proj", "w2"},
};

// Stacked experts are parameters, not modules: `gate_up_proj`, `gate_up_proj_scale_inv`.
constexpr Spelling kStackedSpellings[] = {{kExperts, "gate_up_proj", "gate_up"}, {kExperts, "down_proj", "down"}};
constexpr std::pair<std::string_view, std::string_view> kStackedEndings[] = {
    {"", ".weight"},
    {"_scale_inv", ".scale"},
    {"_weight_scale_inv", ".scale"},
    {"_weight_scale", ".weight_scale"},
    {"_weight_scale_2", ".weight_scale_2"},
    {"_input_scale", ".input_scale"},
};

bool Consume(std::string_view& s, std::string_view prefix) {
  if (!s.starts_with(prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}

// The spelling that `rest` begins with, up to a dot or the end; null: none.
const Spelling* SpellingOf(std::string_view after, std::string_view rest) {
  for (const Spelling& s : kSpellings) {
    if (s.after == after && rest.starts_with(s.found) && (rest.size() == s.found.size() || rest[s.found.size()] == '.'))
      return &s;
  }
  return nullptr;
}

// The official form of stacked experts, `rest` being the name after `ffn.experts.`; empty: it is none.
std::string StackedName(std::string_view rest) {
  for (const Spelling& s : kStackedSpellings) {
    std::string_view ending = rest;
    if (!Consume(ending, s.found)) continue;
    for (const auto& [found, official] : kStackedEndings) {
      if (ending == found) return StrCat(s.official, official);
    }
  }
  return {};
}

// `name` with every component in its official spelling.
std::string Renamed(std::string_view rest) {
  std::string official, after;  // of the components so far
  while (true) {
    if (const Spelling* s = SpellingOf(after, rest)) {
      official += s->official;
      after += s->official;
      rest.remove_prefix(s->found.size());
    } else if (const std::string stack = after == kExperts ? StackedName(rest) : std::string(); !stack.empty()) {
      return official += stack;
    } else {
      const std::string_view component = rest.substr(0, rest.find('.'));
      const bool number = !component.empty() && component.find_first_not_of("0123456789") == std::string_view::npos;
      official += component;
      after += number ? "N" : after.empty() && component == "mtp" ? "layers" : component;
      rest.remove_prefix(component.size());
    }
    if (!Consume(rest, ".")) return official;
    official += '.';
    after += '.';
  }
}

}  // namespace

std::string_view OfficialName(std::string_view name, std::deque<std::string>& storage) {
  constexpr std::string_view kScaleInv = ".weight_scale_inv";
  Consume(name, "model.");
  std::string official = Renamed(name);
  if (official.ends_with(kScaleInv)) official.replace(official.size() - kScaleInv.size(), kScaleInv.size(), ".scale");
  return official == name ? name : storage.emplace_back(std::move(official));
}

bool IsCopyInDraft(std::string_view official_name) {
  if (!Consume(official_name, "mtp.")) return false;
  Consume(official_name, official_name.substr(0, official_name.find('.')));  // the block's number
  return official_name.starts_with(".emb.tok_emb.") || official_name.starts_with(".head.");
}

bool IsDraftName(std::string_view official_name) { return official_name.starts_with("mtp."); }

}  // namespace dsv4::deepseek_v4
