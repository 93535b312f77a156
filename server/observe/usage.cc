#include "server/observe/usage.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace dsv4::server {

namespace {

double RoundedMs(double seconds) { return std::round(seconds * 1e6) / 1e3; }

double TokenRate(int64_t tokens, double seconds) {
  return tokens > 0 && seconds > 0 ? std::round(1e3 * static_cast<double>(tokens) / seconds) / 1e3 : 0;
}

Json MsPerToken(int64_t tokens, double seconds) {
  return tokens > 0 ? Json(RoundedMs(seconds / static_cast<double>(tokens))) : Json(nullptr);
}

bool IsUtf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    const size_t length = c < 0x80                ? 1
                          : c >= 0xC2 && c < 0xE0 ? 2
                          : c >= 0xE0 && c < 0xF0 ? 3
                          : c >= 0xF0 && c < 0xF5 ? 4
                                                  : 0;
    if (length == 0 || i + length > bytes.size()) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(bytes[i + k]) & 0xC0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

Json LogprobEntry(const Tokenizer& tokenizer, TokenId id, float logprob) {
  Json bytes = Json::array();
  if (tokenizer.IsValid(id)) {
    for (const char c : tokenizer.TokenBytes(id)) bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  }
  return {{"token", TokenText(tokenizer, id)}, {"logprob", FloatToJson(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

std::string TokenText(const Tokenizer& tokenizer, TokenId id) {
  if (!tokenizer.IsValid(id)) return "";
  const std::string_view bytes = tokenizer.TokenBytes(id);
  if (IsUtf8(bytes)) return std::string(bytes);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "\\x";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Json LogprobsToJson(const Tokenizer& tokenizer, const std::vector<OutputToken>& tokens) {
  Json list = Json::array();
  for (const OutputToken& token : tokens) {
    Json entry = LogprobEntry(tokenizer, token.id, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : token.top)
      entry["top_logprobs"].push_back(LogprobEntry(tokenizer, other.id, other.logprob));
    list.push_back(std::move(entry));
  }
  return list;
}

Json CompletionDetails(const TokenCounts& c) {
  Json details = {{"reasoning_tokens", c.reasoning}};
  if (c.drafted > 0) details["accepted_prediction_tokens"] = c.drafted;
  return details;
}

Json UsageToJson(const TokenCounts& c) {
  return {{"prompt_tokens", c.prompt},
          {"completion_tokens", c.completion},
          {"total_tokens", c.prompt + c.completion},
          {"prompt_tokens_details", {{"cached_tokens", c.cached}}},
          {"completion_tokens_details", CompletionDetails(c)},
          {"prompt_cache_hit_tokens", c.cached},
          {"prompt_cache_miss_tokens", c.prompt - c.cached}};
}

double TokensPerSecond(const TokenCounts& c, const SequenceTimes& t) { return TokenRate(c.completion - 1, t.decode); }

Json TimingsToJson(const TokenCounts& c, const SequenceTimes& t) {
  const int64_t read = c.prompt - c.cached, written = std::max<int64_t>(c.completion - 1, 0);
  Json timings = {{"cache_n", c.cached},
                  {"prompt_n", read},
                  {"prompt_ms", RoundedMs(t.prompt)},
                  {"prompt_per_token_ms", MsPerToken(read, t.prompt)},
                  {"prompt_per_second", TokenRate(read, t.prompt)},
                  {"predicted_n", c.completion},
                  {"predicted_ms", RoundedMs(t.decode)},
                  {"predicted_per_token_ms", MsPerToken(written, t.decode)},
                  {"predicted_per_second", TokenRate(written, t.decode)},
                  {"queue_ms", RoundedMs(t.queued)}};
  if (c.proposed > 0) timings["draft_n"] = c.proposed, timings["draft_n_accepted"] = c.drafted;
  return timings;
}

Json ProgressToJson(const TokenCounts& c, const SequenceTimes& t) {
  return {{"total", c.prompt}, {"cache", c.cached}, {"processed", c.read}, {"time_ms", RoundedMs(t.prompt)}};
}

void UsageSum::Set(const StepOutput& output) {
  const auto i = static_cast<size_t>(output.index);
  if (i >= sequences_.size()) sequences_.resize(i + 1);
  sequences_[i] = {output.counts, output.times};
}

TokenCounts UsageSum::Total() const {
  TokenCounts total;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const TokenCounts& c = sequences_[i].counts;
    total.completion += c.completion;
    total.reasoning += c.reasoning;
    total.drafted += c.drafted;
    total.proposed += c.proposed;
    if (i % sequences_per_prompt_ != 0) continue;
    total.prompt += c.prompt;
    total.cached += c.cached;
  }
  return total;
}

SequenceTimes UsageSum::Times() const {
  SequenceTimes longest;
  for (const One& s : sequences_) {
    longest.queued = std::max(longest.queued, s.times.queued);
    longest.prompt = std::max(longest.prompt, s.times.prompt);
    longest.decode = std::max(longest.decode, s.times.decode);
  }
  return longest;
}

}  // namespace dsv4::server
