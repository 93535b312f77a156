#include "model/deepseek_v4/config/config.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "model/deepseek_v4/config/config_reader.h"
#include "model/deepseek_v4/config/read_rope.h"
#include "model/deepseek_v4/config/read_schedule.h"

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
  in.Expect({"n_shared_experts", "num_shared_experts"}, 1);
  in.Expect({"scoring_func", "score_func"}, "sqrtsoftplus");
  in.Expect({"topk_method"}, "noaux_tc");
  in.Expect({"norm_topk_prob"}, true);
  in.Expect({"tie_word_embeddings"}, false);
  in.Expect({"hidden_act"}, "silu");
  in.Expect({"attention_bias"}, false);
  in.Expect({"mlp_bias"}, false);
  in.Expect({"rope_interleave"}, true);
  // Fields of relatives of V4. The layers, the router and the indexer do not compute them.
  in.Expect({"first_k_dense_replace"}, 0);
  in.Expect({"moe_layer_freq"}, 1);
  in.Expect({"n_group"}, 1);
  in.Expect({"topk_group"}, 1);
  in.Expect({"index_topk_freq"}, 1);
  in.Expect({"attn_logit_softcapping"}, 0);
  in.Expect({"final_logit_softcapping"}, 0);
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
  c.num_experts = in.Int({"n_routed_experts", "num_local_experts", "num_experts"}, 1, 1 << 16);
  c.num_shared_experts = 1;
  c.experts_per_token = in.Int({"num_experts_per_tok", "n_activated_experts"}, 1, 1024);
  c.routed_scaling_factor = static_cast<float>(in.Number({"routed_scaling_factor", "route_scale"}, 1e-6, 1e6));
  c.swiglu_limit = in.IsNull("swiglu_limit") ? std::numeric_limits<float>::infinity()
                                             : static_cast<float>(in.Number({"swiglu_limit"}, 1e-6, 1e6));
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
