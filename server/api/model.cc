// Routes that describe the model and the program, and the files of the model's folder that they need.
#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "dsv4/version.h"
#include "server/api/api.h"

namespace dsv4::server {

namespace {

constexpr uintmax_t kMaxSmallFile = uintmax_t{16} << 20;

// Reads a file of a model's folder. Returns "" if it is not a regular file (a pipe would block) or is too large.
std::string ReadSmallFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) > kMaxSmallFile)
    return "";
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// In RFC 3339, for Anthropic's clients.
std::string TimeText(std::time_t time) {
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  std::array<char, 32> text;
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

Json ModelToJson(const Api& api, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", api.created},
          {"owned_by", "dsv4"},
          {"type", "model"},
          {"display_name", name},
          {"created_at", TimeText(api.created)},
          {"root", api.options.model_name},
          {"max_model_len", api.model.max_context},
          {"max_input_tokens", api.model.max_context},
          {"max_tokens", api.model.max_context}};
}

}  // namespace

void ServeModels(const Api& api, const ExchangePtr& exchange) {
  if (const std::string wanted = PathParameter(exchange->request(), "/v1/models"); !wanted.empty()) {
    if (!IsModelName(api.options, wanted)) throw NoSuchModel(api.options, wanted);
    return exchange->Respond(200, "application/json", Dump(ModelToJson(api, wanted)));
  }
  Json models = Json::array({ModelToJson(api, api.options.model_name)});
  for (const std::string& name : api.options.other_names) models.push_back(ModelToJson(api, name));
  exchange->Respond(200, "application/json",
                    Dump({{"object", "list"},
                          {"data", models},
                          {"models", models},  // Codex reads this member
                          {"has_more", false},
                          {"first_id", models.front()["id"]},
                          {"last_id", models.back()["id"]}}));
}

// In SGLang's form, for its gateway.
void ServeModelInfo(const Api& api, const ExchangePtr& exchange) {
  exchange->Respond(200, "application/json",
                    Dump({{"model_path", api.options.model_dir},
                          {"tokenizer_path", api.options.model_dir},
                          {"served_model_name", api.options.model_name},
                          {"is_generation", true},
                          {"model_type", "deepseek_v4"},
                          {"context_length", api.model.max_context}}));
}

void ServeServerInfo(const Api& api, const ExchangePtr& exchange) {
  const ServerOptions& o = api.options;
  const double room = static_cast<double>(o.kv_budget_bytes) / std::max(api.model.kv_bytes_per_token, 1.0);
  exchange->Respond(200, "application/json",
                    Dump({{"version", GetBuildInfo().version},
                          {"model_path", o.model_dir},
                          {"served_model_name", o.model_name},
                          {"context_length", api.model.max_context},
                          {"tp_size", o.num_ranks},
                          {"dp_size", 1},
                          {"max_running_requests", o.max_running},
                          {"max_queued_requests", o.max_waiting},
                          {"chunked_prefill_size", o.prefill_chunk},
                          {"page_size", kKvPageTokens},
                          {"max_total_num_tokens", static_cast<int64_t>(room)},
                          {"disaggregation_mode", "null"}}));
}

void ServeTokenizerInfo(const Api& api, const ExchangePtr& exchange) {
  Json info = Json::parse(ReadSmallFile(api.options.model_dir + "/tokenizer_config.json"), nullptr,
                          /*allow_exceptions=*/false);
  if (!info.is_object()) info = Json::object();
  for (auto& [key, value] : info.items()) {
    if (value.is_object() && value.contains("content")) value = Json(value["content"]);
  }
  const auto text = [&](TokenId id) {
    return api.tokenizer.IsValid(id) ? Json(TokenText(api.tokenizer, id)) : Json(nullptr);
  };
  for (const auto& [key, id] :
       {std::pair{"bos_token", api.tokenizer.bos_token_id()}, std::pair{"eos_token", api.tokenizer.eos_token_id()}}) {
    if (!info.contains(key)) info[key] = text(id);
  }
  if (!info.contains("pad_token")) info["pad_token"] = info["eos_token"];
  if (!info.contains("chat_template")) info["chat_template"] = nullptr;
  exchange->Respond(200, "application/json", Dump(info));
}

void ServeVersion(const Api&, const ExchangePtr& exchange) {
  const BuildInfo build = GetBuildInfo();
  exchange->Respond(200, "application/json",
                    Dump({{"version", build.version}, {"commit", build.commit}, {"compiler", build.compiler}}));
}

}  // namespace dsv4::server
