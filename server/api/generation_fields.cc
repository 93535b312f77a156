// The fields of request bodies about sampling, the end of a reply, and its form, which several routes share.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "server/api/api.h"

namespace dsv4::server {

namespace {

// Limits for the stops of a request. Each choice has a copy of its own, several times as large.
constexpr size_t kMaxStops = 64, kMaxStopBytes = 16 << 10, kMaxStopIds = 1024;

// Reads a number that has several names.
std::optional<int64_t> ReadAliases(const Fields& fields, std::initializer_list<const char*> names) {
  std::optional<int64_t> value;
  const char* first = nullptr;
  for (const char* name : names) {
    const auto given = fields.Integer(name);
    if (!given) continue;
    if (value && *value != *given)
      Refuse(first, std::string(first) + " and " + name + " differ; send only one of them");
    value = given;
    first = name;
  }
  return value;
}

// Our penalty counts the whole text. llama.cpp's counts the last tokens, if repeat_last_n says how many.
void ReadRepetitionPenalty(const Fields& fields, SamplingParams* s) {
  const auto ours = fields.Number("repetition_penalty"), other = fields.Number("repeat_penalty");
  if (ours && other && *ours != *other)
    Refuse("repetition_penalty", "repetition_penalty and repeat_penalty differ; send only one of them");
  if (ours || other) s->repeat_penalty = static_cast<float>(ours ? *ours : *other);
  const int64_t last = fields.Integer("repeat_last_n").value_or(-1);
  if (last == 0) s->repeat_penalty = 1;
  if (last > 0 && s->repeat_penalty != 1) {
    Refuse("repeat_last_n", "repeat_last_n is " + std::to_string(last) +
                                ", but the repetition penalty of this server counts all tokens; send -1");
  }
}

// Returns the mask of allowed_token_ids; null: all tokens.
std::shared_ptr<const std::vector<uint32_t>> ReadAllowedIds(const Api& api, const Fields& fields) {
  const Json* ids = fields.Array("allowed_token_ids");
  if (ids == nullptr || ids->empty()) return nullptr;
  std::vector<uint32_t> mask(static_cast<size_t>(api.model.vocab_size + 31) / 32);
  for (const Json& id : *ids) {
    const int64_t n = id.is_number_integer() ? id.get<int64_t>() : -1;
    if (n < 0 || n >= api.model.vocab_size) {
      Refuse("allowed_token_ids",
             "allowed_token_ids: expected token ids from 0 to " + std::to_string(api.model.vocab_size - 1));
    }
    mask[static_cast<size_t>(n) / 32] |= 1u << (n % 32);
  }
  return std::make_shared<const std::vector<uint32_t>>(std::move(mask));
}

void ReadLogitBias(const Api& api, const Fields& fields, SamplingParams* s) {
  const Json* bias = fields.Object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= api.model.vocab_size) {
      Refuse("logit_bias", "logit_bias names token '" + key + "'; expected ids from 0 to " +
                               std::to_string(api.model.vocab_size - 1));
    }
    if (!value.is_number() || std::abs(value.get<double>()) > 100) {
      Refuse("logit_bias", "logit_bias of token " + key + " must be a number from -100 to 100");
    }
    s->logit_bias.emplace_back(id, static_cast<float>(value.get<double>()));
  }
}

std::vector<TokenId> ReadStopIds(const Api& api, const Fields& fields) {
  std::vector<TokenId> stop_ids;
  const Json* ids = fields.Array("stop_token_ids");
  if (ids == nullptr) return stop_ids;
  for (const Json& id : *ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= api.model.vocab_size) {
      Refuse("stop_token_ids",
             "stop_token_ids: expected token ids from 0 to " + std::to_string(api.model.vocab_size - 1));
    }
    stop_ids.push_back(static_cast<TokenId>(id.get<int64_t>()));
  }
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
  if (stop_ids.size() > kMaxStopIds) {
    Refuse("stop_token_ids", "stop_token_ids has " + std::to_string(stop_ids.size()) + " different ids; at most " +
                                 std::to_string(kMaxStopIds));
  }
  return stop_ids;
}

}  // namespace

std::vector<std::string> ReadStops(const Fields& fields, const char* name) {
  std::vector<std::string> stops;
  const Json* value = fields.Get(name);
  if (value == nullptr) return stops;
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (!list.is_array()) Refuse(fields.Path(name), fields.Path(name) + ": expected a string or an array of strings");
  if (list.size() > kMaxStops) {
    Refuse(fields.Path(name), fields.Path(name) + " has " + std::to_string(list.size()) + " entries; at most " +
                                  std::to_string(kMaxStops));
  }
  size_t bytes = 0;
  for (const Json& stop : list) {
    if (!stop.is_string()) Refuse(fields.Path(name), fields.Path(name) + ": expected strings");
    bytes += stop.get_ref<const std::string&>().size();
    if (bytes > kMaxStopBytes) {
      Refuse(fields.Path(name), fields.Path(name) + " has more than " + std::to_string(kMaxStopBytes) +
                                    " bytes of strings; send shorter ones");
    }
    // Clients send "" if they have none.
    if (!stop.get_ref<const std::string&>().empty()) stops.push_back(stop.get<std::string>());
  }
  return stops;
}

void ReadCuts(const Fields& fields, SamplingParams* s) {
  if (const auto p = fields.Number("top_p")) s->top_p = static_cast<float>(*p);
  if (const auto k = fields.Integer("top_k")) s->top_k = std::max<int64_t>(*k, 0);
  if (s->top_p > 0) return;
  s->top_p = 1;
  s->top_k = 1;
}

void ReadSeed(const Fields& fields, SamplingParams* s) {
  const Json* given = fields.Get("seed");
  if (given != nullptr && given->is_number_unsigned()) {
    s->seed = given->get<uint64_t>();
  } else if (const auto seed = fields.Integer("seed")) {
    s->seed = static_cast<uint64_t>(*seed);
  }
}

std::optional<int64_t> ReadMaxTokens(const Fields& fields, std::initializer_list<const char*> names,
                                     std::optional<int64_t> otherwise) {
  const auto given = ReadAliases(fields, names);
  if (!given) return otherwise;
  return *given < 0 ? std::nullopt : given;
}

void ReadSampling(const Api& api, const Fields& fields, GenerationParams* params) {
  SamplingParams& s = params->sampling;
  s = api.default_sampling;
  const auto number = [&](const char* name, float* value) {
    if (const auto x = fields.Number(name)) *value = static_cast<float>(*x);
  };
  number("temperature", &s.temperature);
  ReadCuts(fields, &s);
  number("min_p", &s.min_p);
  number("presence_penalty", &s.presence_penalty);
  number("frequency_penalty", &s.frequency_penalty);
  ReadRepetitionPenalty(fields, &s);
  if (!fields.Bool("do_sample").value_or(true)) s.temperature = 0;
  ReadSeed(fields, &s);
  ReadLogitBias(api, fields, &s);
  params->stops = ReadStops(fields, "stop");
  params->include_stop = fields.Bool("include_stop_str_in_output").value_or(false);
  params->speculate = fields.Bool("speculate").value_or(true);
  params->ignore_eos = fields.Bool("ignore_eos").value_or(false);
  params->min_tokens = ReadAliases(fields, {"min_tokens", "min_new_tokens"}).value_or(0);
  params->allowed_ids = ReadAllowedIds(api, fields);
  params->skip_special = fields.Bool("skip_special_tokens").value_or(true);
  params->stop_ids = ReadStopIds(api, fields);
  const Status status = ValidateSampling(s, api.model.vocab_size);
  if (!status.ok()) throw ApiError(400, status.message());
}

ReplyOptions ReadReplyOptions(const Fields& fields) {
  ReplyOptions options;
  options.stream = fields.Bool("stream").value_or(false);
  if (const Json* stream = fields.Object("stream_options")) {
    if (!options.stream) Refuse("stream_options", "stream_options needs stream: true");
    const Fields in(*stream, "stream_options");
    options.include_usage = in.Bool("include_usage").value_or(false);
    options.continuous_usage = in.Bool("continuous_usage_stats").value_or(false) && options.include_usage;
  }
  options.timings = fields.Bool("timings_per_token").value_or(false);
  options.progress = fields.Bool("return_progress").value_or(false) && options.stream;
  options.token_ids = fields.Bool("return_token_ids").value_or(false);
  options.n = static_cast<int>(fields.Integer("n").value_or(1));
  if (const auto best_of = fields.Integer("best_of"); best_of && *best_of != options.n) {
    Refuse("best_of", "best_of other than n is not supported");
  }
  return options;
}

}  // namespace dsv4::server
