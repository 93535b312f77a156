#include "model/deepseek_v4/config/config.h"

#include <algorithm>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "model/deepseek_v4/config/config_reader.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

void CheckArchitecture(ConfigReader& in) {
  if (const Json* type = in.Find({"model_type"}); type != nullptr && *type != "deepseek_v4") {
    in.Refuse("model_type", *type, "\"deepseek_v4\" (V4.1 and other architectures need another engine)");
  }
  if (const Json* list = in.Find({"architectures"}); list != nullptr) {
    const bool ours = list->is_array() && std::find(list->begin(), list->end(), "DeepseekV4ForCausalLM") != list->end();
    if (!ours) in.Refuse("architectures", *list, "[\"DeepseekV4ForCausalLM\"]");
  }
}

void CheckFixedChoices(ConfigReader& in) {
  in.Expect({"num_key_value_heads"}, 1);
  in.Expect({"n_shared_experts"}, 1);
  in.Expect({"scoring_func", "score_func"}, "sqrtsoftplus");
  in.Expect({"topk_method"}, "noaux_tc");
  in.Expect({"norm_topk_prob"}, true);
  in.Expect({"tie_word_embeddings"}, false);
  in.Expect({"hidden_act"}, "silu");
  in.Expect({"attention_bias"}, false);
  in.Expect({"mlp_bias"}, false);
  in.Expect({"rope_scaling.type", "rope_scaling.rope_type", "rope_parameters.compress.rope_type"}, "yarn");
  in.Expect({"rope_parameters.main.rope_type"}, "default");
  in.Expect({"rope_interleave"}, true);
}

// An entry of the official list is a ratio, of transformers' list a name. Null: neither.
const LayerRule* RuleOf(const Json& entry, bool ratio) {
  if (ratio) return entry.is_number_integer() ? FindLayerRule(entry.get<int64_t>()) : nullptr;
  for (const LayerRule& rule : kLayerRules) {
    if (entry == rule.other) return &rule;
  }
  return nullptr;
}

std::string AcceptedRules(bool ratio) {
  std::string all;
  for (const LayerRule& rule : kLayerRules) {
    const std::string one = ratio ? StrCat(rule.ratio) : StrCat("\"", rule.other, "\"");
    all += StrCat(all.empty() ? "" : ", ", one);
  }
  return all;
}

// Reads the official list, or transformers' layer_types with compress_rates. Entries after the last layer belong to
// draft modules. There is no default: transformers' default matches no released model.
void ReadSchedule(ConfigReader& in, Config& c) {
  const Json* ratios = in.Find({"compress_ratios"});
  const Json* types = in.Find({"layer_types"});
  const Json* list = ratios != nullptr ? ratios : types;
  if (list == nullptr) return in.Fail("compress_ratios (also read as layer_types) is missing");
  const std::string_view field = ratios != nullptr ? "compress_ratios" : "layer_types";
  if (!list->is_array() || static_cast<int64_t>(list->size()) < c.num_layers) {
    return in.Fail(StrCat(field, " is ", Shown(*list), "; accepted: a list of at least ", c.num_layers,
                          " entries, one per layer"));
  }
  for (size_t i = 0; i < static_cast<size_t>(c.num_layers); ++i) {
    const Json& entry = (*list)[i];
    const std::string name = StrCat(field, "[", i, "]");
    const LayerRule* rule = RuleOf(entry, ratios != nullptr);
    if (rule == nullptr)
      return in.Fail(StrCat(name, " is ", Shown(entry), "; accepted: ", AcceptedRules(ratios != nullptr)));
    c.compress_ratios.push_back(rule->ratio);
  }
  for (const LayerRule& rule : kLayerRules) {
    const std::string rate = StrCat("compress_rates.", rule.other);
    if (ratios == nullptr && rule.ratio != 0) in.Expect({rate}, rule.ratio);
  }
}

// Reads num_hash_layers, or transformers' mlp_layer_types: "hash_moe" in the first layers, then "moe".
void ReadHashLayers(ConfigReader& in, Config& c) {
  const Json* types = in.Find({"num_hash_layers", "n_hash_layers"}) == nullptr ? in.Find({"mlp_layer_types"}) : nullptr;
  if (types == nullptr) {
    c.num_hash_layers = in.Int({"num_hash_layers", "n_hash_layers"}, 0, c.num_layers);
    return;
  }
  const bool long_enough = types->is_array() && static_cast<int64_t>(types->size()) >= c.num_layers;
  bool learned = false;
  for (size_t i = 0; long_enough && i < static_cast<size_t>(c.num_layers); ++i) {
    const Json& entry = (*types)[i];
    if (entry == "moe") {
      learned = true;
    } else if (entry == "hash_moe" && !learned) {
      ++c.num_hash_layers;
    } else {
      return in.Fail(
          StrCat("mlp_layer_types[", i, "] is ", Shown(entry), "; accepted: \"hash_moe\" first, then \"moe\""));
    }
  }
  if (!long_enough) in.Fail(StrCat("mlp_layer_types is ", Shown(*types), "; accepted: one entry per layer"));
}

void ReadRope(ConfigReader& in, Config& c) {
  if (in.Find({"qk_rope_head_dim", "rope_head_dim"}) != nullptr) {
    c.rope_dim = in.Int({"qk_rope_head_dim", "rope_head_dim"}, 2, c.head_dim);
  } else if (in.Find({"partial_rotary_factor", "rope_parameters.main.partial_rotary_factor"}) != nullptr) {
    const double part = in.Number({"partial_rotary_factor", "rope_parameters.main.partial_rotary_factor"}, 0, 1);
    const double dims = part * static_cast<double>(c.head_dim);
    c.rope_dim = static_cast<int64_t>(dims);
    if (static_cast<double>(c.rope_dim) != dims) {
      in.Fail(StrCat("partial_rotary_factor is ", part, ": not a whole number of the ", c.head_dim, " channels"));
    }
  } else {
    in.Fail("qk_rope_head_dim (also read as rope_head_dim, partial_rotary_factor) is missing");
  }
  c.rope_theta = in.Number({"rope_theta", "rope_parameters.main.rope_theta"}, 1, 1e12);
  c.compress_rope_theta = in.Number({"compress_rope_theta", "rope_parameters.compress.rope_theta"}, 1, 1e12);
  c.yarn_factor = in.Number({"rope_scaling.factor", "rope_factor", "rope_parameters.compress.factor"}, 1, 1e6);
  c.yarn_original_positions = in.Number({"rope_scaling.original_max_position_embeddings", "original_seq_len",
                                         "rope_parameters.compress.original_max_position_embeddings"},
                                        1, 1e9);
  c.yarn_beta_fast = in.Number({"rope_scaling.beta_fast", "beta_fast", "rope_parameters.compress.beta_fast"}, 1e-6, 1e6,
                               32);
  c.yarn_beta_slow = in.Number({"rope_scaling.beta_slow", "beta_slow", "rope_parameters.compress.beta_slow"}, 1e-6, 1e6,
                               1);
  if (in.status().ok() && c.yarn_beta_fast < c.yarn_beta_slow) {
    in.Fail(
        StrCat("rope_scaling.beta_fast is ", c.yarn_beta_fast, "; accepted: at least beta_slow, ", c.yarn_beta_slow));
  }
  const auto extended = static_cast<int64_t>(std::min(c.yarn_factor * c.yarn_original_positions, 134217728.0));
  c.max_positions = in.Int({"max_position_embeddings"}, 1, int64_t{1} << 27, std::max<int64_t>(extended, 1));
}

// Defaults of missing ids: <|begin_of_sentence|> 0, <|end_of_sentence|> 1.
void ReadSpecialTokens(ConfigReader& in, Config& c) {
  const int64_t last = c.vocab_size - 1;
  c.bos_token_id = static_cast<TokenId>(in.Int({"bos_token_id"}, -1, last, 0));
  const Json* eos = in.Find({"eos_token_id"});
  if (eos == nullptr) {
    if (last >= 1) c.eos_token_ids = {1};
    return;
  }
  if (!eos->is_array()) {
    c.eos_token_ids = {static_cast<TokenId>(in.IntOf("eos_token_id", *eos, 0, last))};
    return;
  }
  if (eos->size() > 1024) return in.Fail("eos_token_id lists more than 1024 ids");
  for (const Json& id : *eos) c.eos_token_ids.push_back(static_cast<TokenId>(in.IntOf("eos_token_id", id, 0, last)));
}

// Checks the relations between sizes that the layers require.
void CheckGeometry(ConfigReader& in, const Config& c) {
  const auto check = [&](bool ok, std::string_view field, int64_t value, const std::string& accepted) {
    if (!ok) in.Fail(StrCat(field, " is ", value, "; accepted: ", accepted));
  };
  check(c.num_heads % c.o_groups == 0, "o_groups", c.o_groups, StrCat("a divisor of the ", c.num_heads, " heads"));
  check(c.rope_dim >= 2 && c.rope_dim % 2 == 0 && c.rope_dim < c.head_dim, "qk_rope_head_dim", c.rope_dim,
        StrCat("an even number from 2 to below head_dim, ", c.head_dim));
  check((c.head_dim - c.rope_dim) % 64 == 0, "head_dim", c.head_dim,
        StrCat("qk_rope_head_dim, ", c.rope_dim, ", plus a multiple of 64"));
  check((c.index_head_dim & (c.index_head_dim - 1)) == 0, "index_head_dim", c.index_head_dim,
        "a power of two, 32 or more");
  check(c.index_head_dim >= c.rope_dim, "index_head_dim", c.index_head_dim,
        StrCat("at least qk_rope_head_dim, ", c.rope_dim));
  check(c.experts_per_token <= c.num_experts, "num_experts_per_tok", c.experts_per_token,
        StrCat("at most n_routed_experts, ", c.num_experts));
}

}  // namespace

Result<Config> ParseConfig(const std::string& json_text, const std::string& what) {
  DSV4_ASSIGN_OR_RETURN(const Json root, ParseJson(json_text, what));
  if (!root.is_object()) return DataLoss(StrCat(what, ": not a JSON object"));
  ConfigReader in(root, what);
  CheckArchitecture(in);

  Config c;
  c.vocab_size = in.Int({"vocab_size"}, 1, 1 << 24);
  c.hidden_size = in.Int({"hidden_size", "dim"}, 1, 1 << 17);
  c.num_layers = in.Int({"num_hidden_layers", "n_layers"}, 1, 1024);
  c.num_heads = in.Int({"num_attention_heads", "n_heads"}, 1, 4096);
  c.head_dim = in.Int({"head_dim"}, 1, 8192);
  c.q_lora_rank = in.Int({"q_lora_rank"}, 1, 1 << 17);
  c.o_groups = in.Int({"o_groups"}, 1, 4096);
  c.o_lora_rank = in.Int({"o_lora_rank"}, 1, 1 << 17);
  c.window = in.Int({"sliding_window", "window_size"}, 1, 1 << 20);
  c.moe_intermediate = in.Int({"moe_intermediate_size", "moe_inter_dim"}, 1, 1 << 20);
  c.num_experts = in.Int({"n_routed_experts", "num_local_experts"}, 1, 1 << 16);
  c.num_shared_experts = 1;
  c.experts_per_token = in.Int({"num_experts_per_tok", "n_activated_experts"}, 1, 1024);
  c.routed_scaling_factor = static_cast<float>(in.Number({"routed_scaling_factor", "route_scale"}, 1e-6, 1e6));
  c.swiglu_limit = static_cast<float>(in.Number({"swiglu_limit"}, 1e-6, 1e6));
  c.index_heads = in.Int({"index_n_heads"}, 1, 4096);
  c.index_head_dim = in.Int({"index_head_dim"}, 32, 4096);
  c.index_topk = in.Int({"index_topk"}, 1, 1 << 20);
  c.hc_mult = in.Int({"hc_mult"}, 1, 8);
  c.hc_sinkhorn_iters = in.Int({"hc_sinkhorn_iters"}, 1, 1000);
  c.hc_eps = static_cast<float>(in.Number({"hc_eps"}, 1e-30, 0.1, 1e-6));
  c.rms_norm_eps = static_cast<float>(in.Number({"rms_norm_eps", "norm_eps"}, 1e-30, 0.1, 1e-6));
  CheckFixedChoices(in);
  ReadRope(in, c);
  ReadSchedule(in, c);
  ReadHashLayers(in, c);
  ReadSpecialTokens(in, c);
  if (in.status().ok()) CheckGeometry(in, c);
  if (!in.status().ok()) return in.status();
  return c;
}

Result<ConfigText> ReadConfigText(const std::string& model_dir) {
  for (const std::string& path : {StrCat(model_dir, "/config.json"), StrCat(model_dir, "/inference/config.json")}) {
    if (!FileExists(path)) continue;
    DSV4_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxConfigBytes));
    return ConfigText{.text = std::move(text), .path = path};
  }
  return NotFound(StrCat("no config.json in '", model_dir, "'; give the folder that holds a checkpoint"));
}

Result<Config> LoadConfig(const std::string& model_dir) {
  DSV4_ASSIGN_OR_RETURN(const ConfigText file, ReadConfigText(model_dir));
  return ParseConfig(file.text, file.path);
}

}  // namespace dsv4::deepseek_v4
