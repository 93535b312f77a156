#include "model/deepseek_v4/load/checkpoint_builder.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace dsv4::test {

using deepseek_v4::Config;

namespace {

// Bytes that depend on the name only, so that every dialect has the same vectors.
class Bytes {
 public:
  explicit Bytes(const std::string& name) {
    for (const char c : name) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  }
  uint8_t Next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<uint8_t>(state_ >> 56);
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

std::string FloatBytes(float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}

class Builder {
 public:
  explicit Builder(const Dialect& dialect) : dialect_(dialect) {}

  void Bf16(const std::string& name, std::vector<int64_t> shape) {  // values of size 0.5 to 2
    std::string bytes;
    Bytes source(name);
    for (int64_t i = 0; i < Product(shape); ++i) {
      bytes.push_back(static_cast<char>(source.Next()));
      bytes.push_back(static_cast<char>(0x3f | (source.Next() & 0x80)));
    }
    Add(name, DType::kBf16, std::move(shape), std::move(bytes));
  }
  void F32(const std::string& name, std::vector<int64_t> shape) {
    std::string bytes;
    Bytes source(name);
    for (int64_t i = 0; i < Product(shape); ++i) bytes += FloatBytes(static_cast<float>(source.Next()) / 64.0f - 2.0f);
    Add(name, DType::kF32, std::move(shape), std::move(bytes));
  }
  void HashTable(const std::string& name, int64_t vocab, int64_t per_token, int64_t experts) {
    std::string bytes;
    Bytes source(name);
    for (int64_t i = 0; i < vocab * per_token; ++i) {
      const int64_t id = source.Next() % experts;
      bytes.append(reinterpret_cast<const char*>(&id), 8);
    }
    Add(name, DType::kI64, {vocab, per_token}, std::move(bytes));
  }
  void Linear(const std::string& name, int64_t rows, int64_t cols) { Matrix(name, rows, cols, dialect_.linears); }
  void Expert(const std::string& name, int64_t rows, int64_t cols) { Matrix(name, rows, cols, dialect_.experts); }

  std::vector<TestTensor> Take() { return std::move(tensors_); }

 private:
  static int64_t Product(const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }
  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape, std::string bytes) {
    tensors_.push_back({name, dtype, std::move(shape), std::move(bytes)});
  }
  // One-byte elements, each masked with `keep` and raised to at least `low`: never NaN as E4M3 or E8M0.
  void Octets(const std::string& name, DType dtype, std::vector<int64_t> shape, uint8_t keep, uint8_t low) {
    std::string bytes;
    Bytes source(name);
    for (int64_t i = 0; i < Product(shape); ++i) {
      bytes.push_back(static_cast<char>(std::max<uint8_t>(source.Next() & keep, low)));
    }
    Add(name, dtype, std::move(shape), std::move(bytes));
  }
  void Matrix(const std::string& name, int64_t rows, int64_t cols, TestFormat format) {
    const auto blocks = [](int64_t n) { return (n + 127) / 128; };
    switch (format) {
      case TestFormat::kBf16:
        return Bf16(name + ".weight", {rows, cols});
      case TestFormat::kFp8:
        Octets(name + ".weight", DType::kF8E4M3, {rows, cols}, 0xbf, 0);
        return Octets(name + ".scale", DType::kF8E8M0, {blocks(rows), blocks(cols)}, 0x7f, 0x70);
      case TestFormat::kFp8F32Scale:
        Octets(name + ".weight", DType::kF8E4M3, {rows, cols}, 0xbf, 0);
        return F32(name + ".scale", {blocks(rows), blocks(cols)});
      case TestFormat::kMxfp4:
        Octets(name + ".weight", DType::kI8, {rows, cols / 2}, 0xff, 0);
        return Octets(name + ".scale", DType::kF8E8M0, {rows, cols / 32}, 0x7f, 0x70);
      case TestFormat::kNvfp4:
        Octets(name + ".weight", DType::kU8, {rows, cols / 2}, 0xff, 0);
        Octets(name + ".weight_scale", DType::kF8E4M3, {rows, cols / 16}, 0x3f, 0x20);
        Add(name + ".weight_scale_2", DType::kF32, {}, FloatBytes(0.25f + static_cast<float>(name.size())));
        return Add(name + ".input_scale", DType::kF32, {}, FloatBytes(0.001f));
    }
  }

  Dialect dialect_;
  std::vector<TestTensor> tensors_;
};

void AddCompressor(Builder& b, const Config& c, const std::string& name, int64_t ratio, int64_t dim) {
  const int64_t width = ratio == 4 ? 2 * dim : dim;
  b.F32(name + ".ape", {ratio, width});
  b.Bf16(name + ".wkv.weight", {width, c.hidden_size});
  b.Bf16(name + ".wgate.weight", {width, c.hidden_size});
  b.Bf16(name + ".norm.weight", {dim});
}

void AddAttention(Builder& b, const Config& c, const std::string& name, int64_t ratio) {
  b.Linear(name + ".wq_a", c.q_lora_rank, c.hidden_size);
  b.Bf16(name + ".q_norm.weight", {c.q_lora_rank});
  b.Linear(name + ".wq_b", c.num_heads * c.head_dim, c.q_lora_rank);
  b.Linear(name + ".wkv", c.head_dim, c.hidden_size);
  b.Bf16(name + ".kv_norm.weight", {c.head_dim});
  b.F32(name + ".attn_sink", {c.num_heads});
  b.Linear(name + ".wo_a", c.o_groups * c.o_lora_rank, c.num_heads * c.head_dim / c.o_groups);
  b.Linear(name + ".wo_b", c.hidden_size, c.o_groups * c.o_lora_rank);
  if (ratio != 0) AddCompressor(b, c, name + ".compressor", ratio, c.head_dim);
  if (ratio != 4) return;
  b.Linear(name + ".indexer.wq_b", c.index_heads * c.index_head_dim, c.q_lora_rank);
  b.Bf16(name + ".indexer.weights_proj.weight", {c.index_heads, c.hidden_size});
  AddCompressor(b, c, name + ".indexer.compressor", 4, c.index_head_dim);
}

void AddExpert(const Config& c, const std::string& name, const auto& add) {
  add(name + ".w1", c.moe_intermediate, c.hidden_size);
  add(name + ".w2", c.hidden_size, c.moe_intermediate);
  add(name + ".w3", c.moe_intermediate, c.hidden_size);
}

void AddHc(Builder& b, const Config& c, const std::string& name, int64_t mixes, int64_t gains) {
  b.F32(name + "_fn", {mixes, c.hc_mult * c.hidden_size});
  b.F32(name + "_base", {mixes});
  b.F32(name + "_scale", {gains});
}

// One block, without its router's table or bias.
void AddBlock(Builder& b, const Config& c, const std::string& layer, int64_t ratio) {
  AddHc(b, c, layer + ".hc_attn", (2 + c.hc_mult) * c.hc_mult, 3);
  AddHc(b, c, layer + ".hc_ffn", (2 + c.hc_mult) * c.hc_mult, 3);
  b.Bf16(layer + ".attn_norm.weight", {c.hidden_size});
  b.Bf16(layer + ".ffn_norm.weight", {c.hidden_size});
  AddAttention(b, c, layer + ".attn", ratio);
  const std::string ffn = layer + ".ffn";
  b.Bf16(ffn + ".gate.weight", {c.num_experts, c.hidden_size});
  AddExpert(c, ffn + ".shared_experts", [&](auto... a) { b.Linear(a...); });
  for (int64_t e = 0; e < c.num_experts; ++e) {
    AddExpert(c, ffn + ".experts." + std::to_string(e), [&](auto... a) { b.Expert(a...); });
  }
}

void AddStage(Builder& b, const Config& c, const std::string& stage, bool is_last) {
  AddBlock(b, c, stage, 0);
  b.F32(stage + ".ffn.gate.bias", {c.num_experts});
  if (!is_last) return;
  b.Bf16(stage + ".norm.weight", {c.hidden_size});
  AddHc(b, c, stage + ".hc_head", c.hc_mult, 1);
}

// Joins experts `part` ("w1" over "w3", or "w2") of every layer into one tensor, expert by expert.
TestTensor StackExperts(const Config& c, std::vector<TestTensor>& tensors, const std::string& experts,
                        const std::vector<std::string>& parts, const std::string& name) {
  TestTensor stack;
  stack.name = experts + name;
  for (int64_t e = 0; e < c.num_experts; ++e) {
    for (const std::string& part : parts) {
      const TestTensor t = Named(tensors, experts + std::to_string(e) + part + ".weight");
      stack.dtype = t.dtype;
      stack.shape = {c.num_experts, t.shape[0] * static_cast<int64_t>(parts.size()), t.shape[1]};
      stack.bytes += t.bytes;
      Erase(tensors, t.name);
    }
  }
  return stack;
}

// Applied in this order; `^` matches the beginning of a name, `$` its end.
constexpr std::pair<std::string_view, std::string_view> kTransformersRules[] = {
    {".scale$", ".weight_scale_inv"},
    {"^embed.", "model.embed_tokens."},
    {"^head.", "lm_head."},
    {"^norm.", "model.norm."},
    {"^hc_head_", "model.hc_head.hc_"},
    {".attn_norm.", ".input_layernorm."},
    {".ffn_norm.", ".post_attention_layernorm."},
    {".hc_attn_", ".attn_hc."},
    {".hc_ffn_", ".ffn_hc."},
    {".attn_sink", ".sinks"},
    {".attn.indexer.wq_b.", ".attn.compressor.indexer.q_b_proj."},
    {".attn.indexer.weights_proj.", ".attn.compressor.indexer.scorer.weights_proj."},
    {".attn.indexer.compressor.", ".attn.compressor.indexer."},
    {".compressor.wkv.", ".compressor.kv_proj."},
    {".compressor.wgate.", ".compressor.gate_proj."},
    {".compressor.ape$", ".compressor.position_bias"},
    {".compressor.norm.", ".compressor.kv_norm."},
    {".compressor.indexer.wkv.", ".compressor.indexer.kv_proj."},
    {".compressor.indexer.wgate.", ".compressor.indexer.gate_proj."},
    {".compressor.indexer.ape$", ".compressor.indexer.position_bias"},
    {".compressor.indexer.norm.", ".compressor.indexer.kv_norm."},
    {".attn.wq_a.", ".attn.q_a_proj."},
    {".attn.q_norm.", ".attn.q_a_norm."},
    {".attn.wq_b.", ".attn.q_b_proj."},
    {".attn.wkv.", ".attn.kv_proj."},
    {".attn.wo_a.", ".attn.o_a_proj."},
    {".attn.wo_b.", ".attn.o_b_proj."},
    {".gate.bias$", ".gate.e_score_correction_bias"},
    {".w1.", ".gate_proj."},
    {".w2.", ".down_proj."},
    {".w3.", ".up_proj."},
    {".attn.", ".self_attn."},
    {".ffn.", ".mlp."},
    {"^layers.", "model.layers."},
};

void Rewrite(std::string& name, std::string_view from, std::string_view to) {
  const bool at_begin = from.starts_with('^'), at_end = from.ends_with('$');
  if (at_begin) from.remove_prefix(1);
  if (at_end) from.remove_suffix(1);
  const size_t at = at_end && name.ends_with(from) ? name.size() - from.size() : name.find(from);
  if (at == std::string::npos || (at_begin && at != 0) || (at_end && at + from.size() != name.size())) return;
  name.replace(at, from.size(), to);
}

}  // namespace

Json TinyConfigJson() {
  return Json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 16, "hidden_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128,
    "qk_rope_head_dim": 64, "q_lora_rank": 64, "o_groups": 2, "o_lora_rank": 32, "sliding_window": 128,
    "moe_intermediate_size": 64, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "num_hash_layers": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
    "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "index_n_heads": 2, "index_head_dim": 64, "index_topk": 8,
    "hc_mult": 2, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "compress_rope_theta": 160000, "rope_scaling": {"type": "yarn", "factor": 16,
    "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}, "max_position_embeddings": 1048576,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
    "bos_token_id": 0, "eos_token_id": 1, "compress_ratios": [0, 4, 128, 0]})");
}

Config TinyConfig() { return deepseek_v4::ParseConfig(TinyConfigJson().dump(), "tiny").value(); }

Json TinyDsparkConfigJson() {
  Json json = TinyConfigJson();
  json["compress_ratios"] = {0, 4, 128, 0, 0};
  json["dspark_block_size"] = 3;
  json["dspark_noise_token_id"] = 15;
  json["dspark_target_layer_ids"] = {0, 2};
  json["dspark_markov_rank"] = 32;
  return json;
}

std::vector<TestTensor> MakeMtp(const Config& c, const Dialect& dialect) {
  Builder b(dialect);
  AddStage(b, c, "mtp.0", true);
  b.Bf16("mtp.0.enorm.weight", {c.hidden_size});
  b.Bf16("mtp.0.hnorm.weight", {c.hidden_size});
  b.Linear("mtp.0.e_proj", c.hidden_size, c.hidden_size);
  b.Linear("mtp.0.h_proj", c.hidden_size, c.hidden_size);
  return b.Take();
}

std::vector<TestTensor> MakeDspark(const Config& c, const Dialect& dialect, int64_t stages) {
  constexpr int64_t kTargets = 2, kRank = 32;
  Builder b(dialect);
  for (int64_t s = 0; s < stages; ++s) AddStage(b, c, "mtp." + std::to_string(s), s + 1 == stages);
  b.Linear("mtp.0.main_proj", c.hidden_size, kTargets * c.hidden_size);
  b.Bf16("mtp.0.main_norm.weight", {c.hidden_size});
  const std::string last = "mtp." + std::to_string(stages - 1);
  b.Bf16(last + ".markov_head.markov_w1.weight", {c.vocab_size, kRank});
  b.Bf16(last + ".markov_head.markov_w2.weight", {c.vocab_size, kRank});
  b.Bf16(last + ".confidence_head.proj.weight", {1, c.hidden_size + kRank});
  return b.Take();
}

std::vector<TestTensor> MakeCheckpoint(const Config& c, const Dialect& dialect) {
  Builder b(dialect);
  b.Bf16("embed.weight", {c.vocab_size, c.hidden_size});
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const std::string layer = "layers." + std::to_string(l);
    AddBlock(b, c, layer, c.compress_ratios[static_cast<size_t>(l)]);
    if (c.is_hash(l)) {
      b.HashTable(layer + ".ffn.gate.tid2eid", c.vocab_size, c.experts_per_token, c.num_experts);
    } else {
      b.F32(layer + ".ffn.gate.bias", {c.num_experts});
    }
  }
  AddHc(b, c, "hc_head", c.hc_mult, 1);
  b.Bf16("norm.weight", {c.hidden_size});
  b.Bf16("head.weight", {c.vocab_size, c.hidden_size});
  return b.Take();
}

// Follows kSpellings (schema/bind_names.cc) in the opposite direction to the binder.
std::vector<TestTensor> ToTransformersNames(const Config& c, std::vector<TestTensor> tensors, bool stacked) {
  if (stacked) {
    for (int64_t l = 0; l < c.num_layers; ++l) {
      const std::string experts = "layers." + std::to_string(l) + ".ffn.experts.";
      tensors.push_back(StackExperts(c, tensors, experts, {".w1", ".w3"}, "gate_up_proj"));
      tensors.push_back(StackExperts(c, tensors, experts, {".w2"}, "down_proj"));
    }
  }
  for (TestTensor& t : tensors) {
    for (const auto& [from, to] : kTransformersRules) Rewrite(t.name, from, to);
  }
  return tensors;
}

std::vector<TestTensor> WithPrefix(const std::string& prefix, std::vector<TestTensor> tensors) {
  for (TestTensor& t : tensors) t.name = prefix + t.name;
  return tensors;
}

TestTensor& Named(std::vector<TestTensor>& tensors, const std::string& name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const TestTensor& t) { return t.name == name; });
  DSV4_CHECK(it != tensors.end(), name);
  return *it;
}

void Erase(std::vector<TestTensor>& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const TestTensor& t) { return t.name == name; });
}

void WriteModel(const std::string& dir, const Json& config, const std::vector<TestTensor>& tensors) {
  WriteBytes(dir + "/config.json", config.dump());
  WriteTensors(dir + "/model.safetensors", tensors);
}

}  // namespace dsv4::test
