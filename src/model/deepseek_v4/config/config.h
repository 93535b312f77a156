// The checked contents of a DeepSeek-V4 model's config.json. docs/dev/glossary.md defines the letters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4/status.h"
#include "dsv4/types.h"
#include "kv/layer_kind.h"
#include "model/draft_module.h"

namespace dsv4::deepseek_v4 {

inline constexpr int64_t kMaxDraftBlock = 8;  // B

// A draft module that is bound (docs/dev/model.md). Its stages are layers L, L + 1, .. of ratio 0.
struct DraftConfig {
  DraftModule module = DraftModule::kNone;
  int64_t stages = 0;
  // DSpark:
  int64_t block = 0;             // B: tokens drafted at once
  TokenId noise_token_id = -1;   // for tokens that are not known yet
  std::vector<int64_t> targets;  // layers whose streams it reads, in rising order
  int64_t markov_rank = 0;
  // The module has its own embedding table or output matrix, different from the model's:
  bool own_embed = false, own_head = false;

  // most draft tokens of a sequence
  int64_t most() const { return is_dspark() ? block : is_mtp() ? kMaxDraftBlock - 1 : 0; }
  int64_t rows() const { return is_dspark() ? block : 1; }  // rows of a sequence in a pass of the module
  DraftFacts facts() const {
    constexpr int64_t kUsualOfMtp = 2;  // it is trained for one
    return {.module = module,
            .most = most(),
            .rows = rows(),
            .usual = is_mtp() ? kUsualOfMtp : most(),
            .makes_at_once = is_dspark(),
            .says_how_sure = is_dspark()};
  }
  bool is_mtp() const { return module == DraftModule::kMtp; }
  bool is_dspark() const { return module == DraftModule::kDspark; }
};

struct Config {
  int64_t vocab_size = 0;          // V
  int64_t hidden_size = 0;         // D
  int64_t num_layers = 0;          // L
  int64_t num_heads = 0;           // N
  int64_t head_dim = 0;            // Dh; the last Dr channels carry RoPE
  int64_t rope_dim = 0;            // Dr
  int64_t q_lora_rank = 0;         // Rq
  int64_t o_groups = 0;            // G
  int64_t o_lora_rank = 0;         // Ro
  int64_t window = 0;              // W
  int64_t moe_intermediate = 0;    // F
  int64_t num_experts = 0;         // E
  int64_t num_shared_experts = 0;  // always 1
  int64_t experts_per_token = 0;   // A
  int64_t num_hash_layers = 0;
  float routed_scaling_factor = 0;
  float swiglu_limit = 0;      // infinite: none
  int64_t index_heads = 0;     // Ni
  int64_t index_head_dim = 0;  // Di
  int64_t index_topk = 0;      // K
  int64_t hc_mult = 0;         // H
  int64_t hc_sinkhorn_iters = 0;
  float hc_eps = 0;
  float rms_norm_eps = 0;
  double rope_theta = 0;           // for layers of ratio 0
  double compress_rope_theta = 0;  // for the other layers, with YaRN:
  double yarn_factor = 0;
  double yarn_original_positions = 0;
  double yarn_beta_fast = 0;
  double yarn_beta_slow = 0;
  int64_t max_positions = 0;
  std::vector<int64_t> compress_ratios;  // [L + stages]: of kLayerRules
  std::vector<TokenId> eos_token_ids;
  TokenId bos_token_id = -1;  // -1: none
  DraftConfig draft;          // filled by LoadDraftConfig
  int num_ranks = 1;  // number of ranks that heads, groups and width are divided among (ShardConfig); always 1 in files
  // 0: one slice per rank. Otherwise the number of slices of the model; heads, groups and width are then one slice's. A
  // rank has several slices, so that sums do not depend on the number of ranks (Sharding)
  int fixed_cuts = 0;
  int num_cuts() const { return fixed_cuts > 0 ? fixed_cuts : num_ranks; }
  int num_slices() const { return num_cuts() / num_ranks; }  // per rank

  const LayerRule& rule(int64_t layer) const { return *FindLayerRule(compress_ratios[static_cast<size_t>(layer)]); }
  LayerKind kind(int64_t layer) const { return rule(layer).kind; }
  bool is_hash(int64_t layer) const { return layer < num_hash_layers; }
};

// Reads DIR/config.json (official or transformers' field names), or DIR/inference/config.json if it does not exist.
// Checks every value that the code relies on. An error names the field, its value and the accepted values.
Result<Config> LoadConfig(const std::string& model_dir);

// The text of DIR/config.json, or of DIR/inference/config.json if it does not exist.
struct ConfigText {
  std::string text, path;
};
Result<ConfigText> ReadConfigText(const std::string& model_dir);

// LoadConfig for the file's text; `what` names it in errors.
Result<Config> ParseConfig(const std::string& json_text, const std::string& what);

}  // namespace dsv4::deepseek_v4
