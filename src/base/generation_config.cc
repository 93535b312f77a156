#include "base/generation_config.h"

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxBytes = int64_t{16} << 20;
constexpr size_t kMaxEosIds = 1024;

std::optional<double> NumberOf(const Json& fields, const char* name) {
  const auto it = fields.find(name);
  return it != fields.end() && it->is_number() ? std::optional(it->get<double>()) : std::nullopt;
}

}  // namespace

Result<GenerationConfig> ReadGenerationConfig(const std::string& model_dir) {
  GenerationConfig out;
  const std::string path = StrCat(model_dir, "/generation_config.json");
  if (!FileExists(path)) return out;
  DSV4_ASSIGN_OR_RETURN(const Json fields, ReadJsonFile(path, kMaxBytes));
  if (!fields.is_object()) return DataLoss(StrCat(path, ": not a JSON object; correct or remove the file"));
  out.temperature = NumberOf(fields, "temperature");
  out.top_k = NumberOf(fields, "top_k");
  out.top_p = NumberOf(fields, "top_p");
  out.min_p = NumberOf(fields, "min_p");
  out.repetition_penalty = NumberOf(fields, "repetition_penalty");
  const auto eos = fields.find("eos_token_id");
  if (eos == fields.end()) return out;
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    if (id.is_number_integer() && out.eos_token_ids.size() < kMaxEosIds) out.eos_token_ids.push_back(id.get<int64_t>());
  }
  return out;
}

}  // namespace dsv4
