#include "model/deepseek_v4/config/read_rope.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/str.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr std::string_view kObjects[] = {"rope_scaling", "rope_parameters", "rope_parameters.main",
                                         "rope_parameters.compress"};
// Fields of these objects that ReadRope reads, or that change nothing.
constexpr std::string_view kKnown[] = {"type",
                                       "rope_type",
                                       "rope_theta",
                                       "factor",
                                       "partial_rotary_factor",
                                       "beta_fast",
                                       "beta_slow",
                                       "finetuned",
                                       "original_max_position_embeddings",
                                       "max_position_embeddings"};

bool Is(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// YaRN of V4 scales neither cos and sin nor the scores. (Others multiply by 1 + 0.1 ln(factor).)
void CheckFieldOf(ConfigReader& in, const std::string& object, const std::string& field, const Json& value) {
  const std::string name = StrCat(object, ".", field);
  if (field == "attention_factor" || field == "attn_factor") return in.Expect({name}, 1);
  if (field == "mscale" || field == "mscale_all_dim") return in.Expect({name}, 0);
  if (field == "truncate") return in.Expect({name}, true);
  const bool nested = object == "rope_parameters" && (field == "main" || field == "compress") && value.is_object();
  if (!nested && !Is(field, kKnown) && !value.is_null())
    in.Refuse(name, value, "none; the model of V4 does not have this field");
}

void CheckFields(ConfigReader& in) {
  for (const std::string_view object : kObjects) {
    const Json* fields = in.At(object);
    if (fields == nullptr || fields->is_null()) continue;
    if (!fields->is_object()) return in.Refuse(object, *fields, "an object");
    for (const auto& [field, value] : fields->items()) CheckFieldOf(in, std::string(object), field, value);
  }
}

// save_pretrained of transformers 5.8 writes YaRN for `main` by mistake; its model computes plain RoPE there.
bool IsOfTransformers58(const ConfigReader& in) {
  const Json* version = in.At("transformers_version");
  if (version == nullptr || !version->is_string()) return false;
  const auto& text = version->get_ref<const std::string&>();
  return text == "5.8" || text.starts_with("5.8.");
}

void CheckTypes(ConfigReader& in) {
  in.Expect({"rope_scaling.type", "rope_scaling.rope_type", "rope_parameters.compress.rope_type",
             "rope_parameters.compress.type"},
            "yarn");
  if (!IsOfTransformers58(in)) in.Expect({"rope_parameters.main.rope_type", "rope_parameters.main.type"}, "default");
  // Without `main` and `compress`, the fields are the fields of `compress`. With them, the fields are not used.
  const bool nested = in.At("rope_parameters.main") != nullptr || in.At("rope_parameters.compress") != nullptr;
  const Json* type = in.Find({"rope_parameters.rope_type", "rope_parameters.type"});
  if (type != nullptr && *type != "yarn" && !(nested && *type == "default"))
    in.Refuse("rope_parameters.rope_type", *type, nested ? "\"default\", \"yarn\"" : "\"yarn\"");
}

// Channels with RoPE: a number, or a part of head_dim. All fields must agree.
void ReadRopeDim(ConfigReader& in, Config& c) {
  const bool has_dim = in.Find({"qk_rope_head_dim", "rope_head_dim"}) != nullptr;
  if (has_dim) c.rope_dim = in.Int({"qk_rope_head_dim", "rope_head_dim"}, 2, c.head_dim);
  bool known = has_dim;
  for (const std::string_view name : {"partial_rotary_factor", "rope_parameters.main.partial_rotary_factor",
                                      "rope_parameters.compress.partial_rotary_factor",
                                      "rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor"}) {
    if (in.Find({name}) == nullptr) continue;
    const double part = in.Number({name}, 0, 1), dims = part * static_cast<double>(c.head_dim);
    if (!in.status().ok()) return;
    if (std::abs(dims - std::round(dims)) > 1e-6)
      return in.Fail(StrCat(name, " is ", part, ": not a whole number of the ", c.head_dim, " channels"));
    const auto channels = static_cast<int64_t>(std::round(dims));
    if (known && channels != c.rope_dim) {
      return in.Fail(StrCat(name, " is ", part, ", which are ", channels, " of ", c.head_dim, " channels, but ",
                            has_dim ? "qk_rope_head_dim" : "another one", " is ", c.rope_dim));
    }
    c.rope_dim = channels;
    known = true;
  }
  if (!known) in.Fail("qk_rope_head_dim (also read as rope_head_dim, partial_rotary_factor) is missing");
  in.Expect({"qk_nope_head_dim"}, c.head_dim - c.rope_dim);
  in.Expect({"qk_head_dim"}, c.head_dim);
  in.Expect({"v_head_dim"}, c.head_dim);
}

}  // namespace

void ReadRope(ConfigReader& in, Config& c) {
  CheckTypes(in);
  CheckFields(in);
  ReadRopeDim(in, c);
  c.rope_theta = in.Number({"rope_theta", "rope_parameters.main.rope_theta", "rope_parameters.rope_theta"}, 1, 1e12);
  c.compress_rope_theta = in.Number({"compress_rope_theta", "rope_parameters.compress.rope_theta"}, 1, 1e12);
  const Json* theta = in.At("rope_scaling.rope_theta");
  if (in.status().ok() && theta != nullptr && !theta->is_null() && *theta != c.rope_theta &&
      *theta != c.compress_rope_theta) {
    in.Refuse("rope_scaling.rope_theta", *theta,
              StrCat("rope_theta, ", c.rope_theta, ", or compress_rope_theta, ", c.compress_rope_theta));
  }
  c.yarn_factor = in.Number(
      {"rope_scaling.factor", "rope_factor", "rope_parameters.compress.factor", "rope_parameters.factor"}, 1, 1e6);
  c.yarn_original_positions = in.Number(
      {"rope_scaling.original_max_position_embeddings", "original_seq_len",
       "rope_parameters.compress.original_max_position_embeddings", "rope_parameters.original_max_position_embeddings"},
      1, 1e9);
  c.yarn_beta_fast = in.Number(
      {"rope_scaling.beta_fast", "beta_fast", "rope_parameters.compress.beta_fast", "rope_parameters.beta_fast"}, 1e-6,
      1e6, 32);
  c.yarn_beta_slow = in.Number(
      {"rope_scaling.beta_slow", "beta_slow", "rope_parameters.compress.beta_slow", "rope_parameters.beta_slow"}, 1e-6,
      1e6, 1);
  if (in.status().ok() && c.yarn_beta_fast < c.yarn_beta_slow) {
    in.Fail(
        StrCat("rope_scaling.beta_fast is ", c.yarn_beta_fast, "; accepted: at least beta_slow, ", c.yarn_beta_slow));
  }
  const auto extended = static_cast<int64_t>(std::min(c.yarn_factor * c.yarn_original_positions, 134217728.0));
  c.max_positions = in.Int({"max_position_embeddings"}, 1, int64_t{1} << 27, std::max<int64_t>(extended, 1));
}

}  // namespace dsv4::deepseek_v4
