#include "usage.h"

#include <algorithm>
#include <cmath>
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

}  // namespace

Json UsageToJson(const TokenCounts& c) {
  Json details = {{"reasoning_tokens", c.reasoning}};
  if (c.drafted > 0) details["accepted_prediction_tokens"] = c.drafted;
  return {{"prompt_tokens", c.prompt},
          {"completion_tokens", c.completion},
          {"total_tokens", c.prompt + c.completion},
          {"prompt_tokens_details", {{"cached_tokens", c.cached}}},
          {"completion_tokens_details", std::move(details)},
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
  if (c.drafted > 0) timings["draft_n_accepted"] = c.drafted;
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
