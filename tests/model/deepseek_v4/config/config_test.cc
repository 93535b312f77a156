#include "model/deepseek_v4/config/config.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::TempDir;
using test::TinyConfigJson;
using test::WriteBytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Config> Parse(const Json& json) { return ParseConfig(json.dump(), "FILE"); }

void ExpectTiny(const Config& c) {
  EXPECT_EQ(c.vocab_size, 16);
  EXPECT_EQ(c.hidden_size, 128);
  EXPECT_EQ(c.num_layers, 3);
  EXPECT_EQ(c.num_heads, 2);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rope_dim, 64);
  EXPECT_EQ(c.q_lora_rank, 64);
  EXPECT_EQ(c.o_groups, 2);
  EXPECT_EQ(c.o_lora_rank, 32);
  EXPECT_EQ(c.window, 128);
  EXPECT_EQ(c.moe_intermediate, 64);
  EXPECT_EQ(c.num_experts, 4);
  EXPECT_EQ(c.num_shared_experts, 1);
  EXPECT_EQ(c.experts_per_token, 2);
  EXPECT_EQ(c.num_hash_layers, 1);
  EXPECT_EQ(c.routed_scaling_factor, 1.5f);
  EXPECT_EQ(c.swiglu_limit, 10.0f);
  EXPECT_EQ(c.index_heads, 2);
  EXPECT_EQ(c.index_head_dim, 64);
  EXPECT_EQ(c.index_topk, 8);
  EXPECT_EQ(c.hc_mult, 2);
  EXPECT_EQ(c.hc_sinkhorn_iters, 20);
  EXPECT_EQ(c.hc_eps, 1e-6f);
  EXPECT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.compress_rope_theta, 160000);
  EXPECT_EQ(c.yarn_factor, 16);
  EXPECT_EQ(c.yarn_original_positions, 65536);
  EXPECT_EQ(c.yarn_beta_fast, 32);
  EXPECT_EQ(c.yarn_beta_slow, 1);
  EXPECT_EQ(c.max_positions, 1048576);
  EXPECT_THAT(c.compress_ratios, ElementsAre(0, 4, 128));
  EXPECT_EQ(c.bos_token_id, 0);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(1));
}

TEST(Config, ReadsOfficialNames) {
  const auto c = Parse(TinyConfigJson());
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
  EXPECT_EQ(c->kind(0), LayerKind::kSliding);
  EXPECT_EQ(c->kind(1), LayerKind::kCsa);
  EXPECT_EQ(c->kind(2), LayerKind::kHca);
  EXPECT_TRUE(c->is_hash(0));
  EXPECT_FALSE(c->is_hash(1));
}

TEST(Config, ReadsInferenceNames) {
  const auto c = ParseConfig(R"({
    "vocab_size": 16, "dim": 128, "moe_inter_dim": 64, "n_layers": 3, "n_hash_layers": 1, "n_heads": 2,
    "n_routed_experts": 4, "n_shared_experts": 1, "n_activated_experts": 2, "score_func": "sqrtsoftplus",
    "route_scale": 1.5, "swiglu_limit": 10.0, "q_lora_rank": 64, "head_dim": 128, "rope_head_dim": 64, "o_groups": 2,
    "o_lora_rank": 32, "window_size": 128, "original_seq_len": 65536, "rope_theta": 10000, "rope_factor": 16,
    "beta_fast": 32, "beta_slow": 1, "index_n_heads": 2, "index_head_dim": 64, "index_topk": 8, "hc_mult": 2,
    "hc_sinkhorn_iters": 20, "dtype": "fp8", "scale_fmt": "ue8m0", "expert_dtype": "fp4", "compress_rope_theta": 160000,
    "compress_ratios": [0, 4, 128, 0]})",
                             "FILE");
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
}

Json TransformersJson() {
  Json json = TinyConfigJson();
  for (const char* field : {"compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_theta",
                            "compress_rope_theta", "rope_scaling"}) {
    json.erase(field);
  }
  json["layer_types"] = {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"};
  json["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  json["mlp_layer_types"] = {"hash_moe", "moe", "moe"};
  json["partial_rotary_factor"] = 0.5;
  json["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
                             {"compress",
                              {{"rope_type", "yarn"},
                               {"rope_theta", 160000.0},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 65536},
                               {"beta_fast", 32.0},
                               {"beta_slow", 1.0},
                               {"attention_factor", 1.0}}}};
  return json;
}

TEST(Config, ReadsTransformersNames) {
  const auto c = Parse(TransformersJson());
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
}

// As save_pretrained of transformers writes it (5.8 to 5.14 leave fields at the top of rope_parameters).
Json SavedJson(const std::string& version) {
  Json json = TransformersJson();
  json["transformers_version"] = version;
  json["layer_types"].push_back("sliding_attention");  // more than layers
  const Json more = Json::parse(R"({"dtype": "bfloat16", "mlp_bias": false, "output_router_logits": false,
    "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "use_cache": true, "pad_token_id": null,
    "initializer_range": 0.02, "attention_dropout": 0.0, "rope_theta": 10000.0, "compress_rope_theta": 160000.0})");
  json.update(more);
  json["rope_parameters"]["main"]["partial_rotary_factor"] = 0.5;
  json["rope_parameters"]["compress"]["partial_rotary_factor"] = 0.5;
  return json;
}

TEST(Config, ReadsWhatTransformersSaves) {
  Json json = SavedJson("5.15.0");
  auto c = Parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
  json["rope_parameters"].update({{"rope_theta", 10000.0}, {"rope_type", "default"}, {"partial_rotary_factor", 0.5}});
  c = Parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
}

TEST(Config, Transformers58WritesAnotherRopeTypeByMistake) {
  Json json = SavedJson("5.8.1");
  json["rope_parameters"]["main"]["rope_type"] = "yarn";
  json["rope_parameters"]["main"]["factor"] = 16.0;
  const auto c = Parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
  for (const char* version : {"5.9.0", "5.80.0", "4.57.1"}) {
    json["transformers_version"] = version;
    EXPECT_THAT(Parse(json).status().message(), HasSubstr("rope_parameters.main.rope_type is \"yarn\"")) << version;
  }
}

// transformers reads them as the fields of `compress`.
TEST(Config, RopeParametersMayBeFlat) {
  Json json = TransformersJson();
  json["rope_theta"] = 10000;
  json["compress_rope_theta"] = 160000;
  json["rope_parameters"] = json["rope_parameters"]["compress"];
  json["rope_parameters"]["rope_theta"] = 10000;
  const auto c = Parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
  json["rope_parameters"]["rope_type"] = "default";
  EXPECT_THAT(Parse(json).status().message(), HasSubstr("rope_parameters.rope_type is \"default\""));
}

TEST(Config, BothFormsOfASchedule) {
  Json json = TransformersJson();
  json["compress_ratios"] = {0, 4, 128, 0};
  json["num_hash_layers"] = 1;
  const auto c = Parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
}

TEST(Config, RatioOneCompressesNothing) {
  Json json = TinyConfigJson();
  json["compress_ratios"] = {1, 4, 128, 1};
  EXPECT_THAT(Parse(json)->compress_ratios, ElementsAre(0, 4, 128));
}

TEST(Config, SwigluLimitMayBeNull) {
  Json json = TinyConfigJson();
  json["swiglu_limit"] = nullptr;
  const auto c = Parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->swiglu_limit, std::numeric_limits<float>::infinity());
}

// Each of these contradicts another field, or needs a computation that V4 does not have.
TEST(Config, ContradictionsAndUncomputedFieldsAreRefusedByName) {
  struct Change {
    const char* path;  // a JSON pointer
    Json value;
    const char* says;
  };
  const std::vector<Change> of_official = {
      {"/layer_types",
       {"sliding_attention", "sliding_attention", "heavily_compressed_attention"},
       "layer_types[1] is \"sliding_attention\" but compress_ratios[1] is 4"},
      {"/layer_types", {"sliding_attention"}, "layer_types is"},
      {"/mlp_layer_types", {"moe", "moe", "moe"}, "mlp_layer_types has 0"},
      {"/mlp_layer_types", {"hash_moe"}, "mlp_layer_types is"},
      {"/partial_rotary_factor", 0.25, "partial_rotary_factor is 0.25"},
      {"/rope_scaling/partial_rotary_factor", 0.25, "rope_scaling.partial_rotary_factor is 0.25"},
      {"/qk_nope_head_dim", 128, "qk_nope_head_dim is 128"},
      {"/v_head_dim", 64, "v_head_dim is 64"},
      {"/compress_rates", {{"compressed_sparse_attention", 8}}, "compress_rates.compressed_sparse_attention is 8"},
      {"/compress_rate_hca", 64, "compress_rate_hca is 64"},
      {"/rope_scaling/mscale", 1.0, "rope_scaling.mscale is 1.0"},
      {"/rope_scaling/mscale_all_dim", 0.707, "rope_scaling.mscale_all_dim is 0.707"},
      {"/rope_scaling/attention_factor", 1.277, "rope_scaling.attention_factor is 1.277"},
      {"/rope_scaling/rope_theta", 500000, "rope_scaling.rope_theta is 500000"},
      {"/compress_rates", 4, "compress_rates is 4"},
      {"/rope_scaling/truncate", false, "rope_scaling.truncate is false"},
      {"/rope_scaling/long_factor", {1, 2}, "rope_scaling.long_factor is [1,2]"},
      {"/rope_scaling/rope_type", "llama3", "rope_type is \"llama3\""},
      {"/rope_interleave", false, "rope_interleave is false"},
      {"/mlp_bias", true, "mlp_bias is true"},
      {"/first_k_dense_replace", 3, "first_k_dense_replace is 3"},
      {"/n_group", 8, "n_group is 8"},
      {"/topk_group", 4, "topk_group is 4"},
      {"/moe_layer_freq", 2, "moe_layer_freq is 2"},
      {"/index_topk_freq", 4, "index_topk_freq is 4"},
      {"/final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0"},
      {"/num_experts", 8, "num_experts is 8"},
  };
  const std::vector<Change> of_transformers = {
      {"/rope_parameters/compress/attention_factor", 1.277, "rope_parameters.compress.attention_factor is 1.277"},
      {"/rope_parameters/main/attention_factor", 2, "rope_parameters.main.attention_factor is 2"},
      {"/rope_parameters/main/rope_type", "yarn", "rope_parameters.main.rope_type is \"yarn\""},
      {"/rope_parameters/main/rope_theta", 50000, "rope_theta"},
      {"/rope_parameters/main/partial_rotary_factor", 0.25, "rope_parameters.main.partial_rotary_factor is 0.25"},
      {"/rope_parameters/rope_type", "linear", "rope_parameters.rope_type is \"linear\""},
      {"/rope_parameters/rope_theta", 50000, "rope_parameters.rope_theta"},
      {"/rope_parameters/sliding_attention", {{"rope_type", "default"}}, "rope_parameters.sliding_attention is"},
      {"/rope_parameters/compress/rope_type", "default", "rope_type is \"default\""},
  };
  for (const auto& [base, changes] :
       {std::pair(TinyConfigJson(), of_official), std::pair(SavedJson("5.15.0"), of_transformers)}) {
    for (const Change& change : changes) {
      Json json = base;
      json[Json::json_pointer(change.path)] = change.value;
      const auto c = Parse(json);
      ASSERT_FALSE(c.ok()) << change.path;
      EXPECT_THAT(c.status().message(), AllOf(HasSubstr("FILE"), HasSubstr(change.says))) << change.path;
    }
  }
}

TEST(Config, FieldsThatChangeNothingAreAccepted) {
  Json json = TinyConfigJson();
  json.update(Json::parse(R"({"n_group": 1, "topk_group": null, "first_k_dense_replace": 0, "moe_layer_freq": 1,
    "qk_nope_head_dim": 64, "v_head_dim": 128, "compress_rates": {"compressed_sparse_attention": 4},
    "partial_rotary_factor": 0.5, "mlp_bias": false, "rope_interleave": true, "attn_logit_softcapping": null})"));
  json["rope_scaling"].update(Json::parse(
      R"({"attention_factor": 1.0, "mscale": 0, "mscale_all_dim": null, "truncate": true, "rope_type": "yarn"})"));
  const auto c = Parse(json);
  ASSERT_TRUE(c.ok()) << c.status().message();
  ExpectTiny(*c);
}

TEST(Config, MissingScheduleIsAnError) {
  Json json = TinyConfigJson();
  json.erase("compress_ratios");
  EXPECT_THAT(Parse(json).status().message(),
              AllOf(HasSubstr("FILE"), HasSubstr("compress_ratios"), HasSubstr("missing")));
}

TEST(Config, RatiosOfDraftModulesAreCut) {
  Json json = TinyConfigJson();
  json["compress_ratios"] = {0, 4, 128, 0, 0, 0};
  EXPECT_THAT(Parse(json)->compress_ratios, ElementsAre(0, 4, 128));
}

TEST(Config, EosMayBeAList) {
  Json json = TinyConfigJson();
  json["eos_token_id"] = {1, 5};
  EXPECT_THAT(Parse(json)->eos_token_ids, ElementsAre(1, 5));
  json["bos_token_id"] = -1;
  EXPECT_EQ(Parse(json)->bos_token_id, -1);
}

TEST(Config, EveryRequiredFieldIsNamedWhenMissing) {
  for (const char* field : {"vocab_size",
                            "hidden_size",
                            "num_hidden_layers",
                            "num_attention_heads",
                            "head_dim",
                            "qk_rope_head_dim",
                            "q_lora_rank",
                            "o_groups",
                            "o_lora_rank",
                            "sliding_window",
                            "moe_intermediate_size",
                            "n_routed_experts",
                            "num_experts_per_tok",
                            "num_hash_layers",
                            "routed_scaling_factor",
                            "swiglu_limit",
                            "index_n_heads",
                            "index_head_dim",
                            "index_topk",
                            "hc_mult",
                            "hc_sinkhorn_iters",
                            "rope_theta",
                            "compress_rope_theta",
                            "rope_scaling"}) {
    Json json = TinyConfigJson();
    json.erase(field);
    EXPECT_THAT(Parse(json).status().message(), AllOf(HasSubstr(field), HasSubstr("missing"))) << field;
  }
}

struct Lie {
  std::string field;
  Json value;
  std::string says;  // in addition to the field and the value
};

TEST(Config, LiesAreRefusedNamingFieldValueAndWhatIsAccepted) {
  const std::vector<Lie> lies = {
      {"model_type", "deepseek_v41", "accepted: \"deepseek_v4\""},
      {"model_type", "llama", "accepted: \"deepseek_v4\""},
      {"architectures", {"LlamaForCausalLM"}, "DeepseekV4ForCausalLM"},
      {"architectures", "DeepseekV4ForCausalLM", "accepted"},
      {"num_key_value_heads", 8, "accepted: 1"},
      {"n_shared_experts", 2, "accepted: 1"},
      {"scoring_func", "softmax", "accepted: \"sqrtsoftplus\""},
      {"topk_method", "greedy", "accepted: \"noaux_tc\""},
      {"norm_topk_prob", false, "accepted: true"},
      {"tie_word_embeddings", true, "accepted: false"},
      {"hidden_act", "gelu", "accepted: \"silu\""},
      {"attention_bias", true, "accepted: false"},
      {"vocab_size", 0, "accepted: an integer from 1"},
      {"vocab_size", -16, "accepted"},
      {"vocab_size", 1LL << 40, "accepted"},
      {"vocab_size", 18446744073709551615ULL, "accepted"},
      {"vocab_size", "16", "accepted"},
      {"vocab_size", 16.5, "accepted"},
      {"hidden_size", 1LL << 60, "accepted"},
      {"num_hidden_layers", 100000, "accepted"},
      {"num_attention_heads", 0, "accepted"},
      {"num_attention_heads", 3, ""},  // o_groups 2 does not divide it
      {"head_dim", 100000, "accepted"},
      {"head_dim", 96, ""},
      {"qk_rope_head_dim", 63, "even"},
      {"qk_rope_head_dim", 128, "even"},
      {"qk_rope_head_dim", 32, ""},  // 128 - 32 is not a multiple of 64
      {"o_groups", 0, "accepted"},
      {"o_groups", 4, "divisor"},
      {"sliding_window", 0, "accepted"},
      {"n_routed_experts", 1, ""},  // fewer than the two per token
      {"num_experts_per_tok", 5, "n_routed_experts"},
      {"num_hash_layers", 4, "accepted"},
      {"routed_scaling_factor", 0, "accepted"},
      {"routed_scaling_factor", nullptr, "missing"},
      {"swiglu_limit", -1, "accepted"},
      {"index_head_dim", 96, "power of two"},
      {"index_head_dim", 16, "accepted"},
      {"index_head_dim", 32, "qk_rope_head_dim"},
      {"index_topk", 0, "accepted"},
      {"hc_mult", 9, "accepted: an integer from 1 to 8"},
      {"hc_mult", true, "accepted"},
      {"hc_sinkhorn_iters", 0, "from 1 to 1000"},
      {"hc_sinkhorn_iters", 1001, "from 1 to 1000"},
      {"hc_eps", 0, "accepted"},
      {"hc_eps", -1e-6, "accepted"},
      {"rms_norm_eps", 1, "accepted"},
      {"rms_norm_eps", "1e-6", "accepted"},
      {"rope_theta", 0, "accepted"},
      {"compress_rope_theta", 1e300, "accepted"},
      {"max_position_embeddings", 0, "accepted"},
      {"eos_token_id", 16, "accepted"},
      {"eos_token_id", {1, -1}, "accepted"},
      {"eos_token_id", {{"a", 1}}, "accepted"},
      {"bos_token_id", 16, "accepted"},
      {"compress_ratios", {0, 4}, "at least 3"},
      {"compress_ratios", {0, 4, 8}, "0, 4, 128"},
      {"compress_ratios", {0, 4, "128"}, "0, 4, 128"},
      {"compress_ratios", {0, 4, 128.0}, "0, 4, 128"},
      {"compress_ratios", 4, "list"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 16}, {"original_max_position_embeddings", 65536}}, "yarn"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 0}, {"original_max_position_embeddings", 65536}}, "factor"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 16}}, "original_max_position_embeddings"},
      {"rope_scaling",
       {{"type", "yarn"}, {"factor", 16}, {"original_max_position_embeddings", 65536}, {"beta_fast", 0.5}},
       "beta_slow"},
  };
  for (const Lie& lie : lies) {
    Json json = TinyConfigJson();
    json[lie.field] = lie.value;
    const auto c = Parse(json);
    ASSERT_FALSE(c.ok()) << lie.field << " " << lie.value;
    EXPECT_THAT(c.status().message(), AllOf(HasSubstr("FILE"), HasSubstr(lie.says), Not(HasSubstr("\n"))))
        << lie.field << " " << lie.value;
    EXPECT_THAT(c.status().message(), HasSubstr(lie.says.empty() ? "accepted" : lie.field));
  }
}

TEST(Config, TransformersSchedulesAreChecked) {
  Json json = TransformersJson();
  json["layer_types"][1] = "full_attention";
  EXPECT_THAT(Parse(json).status().message(), AllOf(HasSubstr("layer_types[1]"), HasSubstr("full_attention")));
  json = TransformersJson();
  json["compress_rates"]["heavily_compressed_attention"] = 64;
  EXPECT_THAT(Parse(json).status().message(), HasSubstr("heavily_compressed_attention is 64"));
  json = TransformersJson();
  json["mlp_layer_types"] = {"moe", "hash_moe", "moe"};
  EXPECT_THAT(Parse(json).status().message(), HasSubstr("mlp_layer_types[1]"));
  json["mlp_layer_types"] = {"moe"};
  EXPECT_THAT(Parse(json).status().message(), HasSubstr("mlp_layer_types"));
  json = TransformersJson();
  json["partial_rotary_factor"] = 0.3;
  EXPECT_THAT(Parse(json).status().message(), HasSubstr("partial_rotary_factor"));
}

TEST(Config, TwoNamesOfOneFieldMustAgree) {
  Json json = TinyConfigJson();
  json["dim"] = 128;
  EXPECT_TRUE(Parse(json).ok());
  json["dim"] = 256;
  EXPECT_THAT(Parse(json).status().message(), AllOf(HasSubstr("hidden_size is 128"), HasSubstr("dim is 256")));
}

TEST(Config, BrokenTextIsRefused) {
  for (const char* text : {"", "{", "[]", "null", "{\"vocab_size\": NaN}", "{\"vocab_size\": 1e999}", "\xff\xfe"}) {
    const auto c = ParseConfig(text, "FILE");
    ASSERT_FALSE(c.ok()) << text;
    EXPECT_THAT(c.status().message(), AllOf(HasSubstr("FILE"), Not(HasSubstr("\n"))));
  }
}

TEST(Config, LoadsFromTheFolder) {
  const TempDir dir;
  EXPECT_EQ(LoadConfig(dir.path()).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(LoadConfig(dir.path()).status().message(), HasSubstr(dir.path()));
  std::filesystem::create_directory(dir / "inference");
  WriteBytes(dir / "inference/config.json", TinyConfigJson().dump());
  EXPECT_TRUE(LoadConfig(dir.path()).ok());
  WriteBytes(dir / "config.json", "{}");
  EXPECT_THAT(LoadConfig(dir.path()).status().message(), HasSubstr(dir / "config.json"));
}

}  // namespace
}  // namespace dsv4::deepseek_v4
