// The report of a reply about itself: token counts, log-probabilities, and times.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "dsv4/tokenizer.h"
#include "server/base/json.h"
#include "server/schedule/generation.h"

namespace dsv4::server {

// The details of a usage object: kinds of output tokens, and the number of accepted draft tokens if there were any.
Json CompletionDetails(const TokenCounts& counts);

// OpenAI's usage object, with DeepSeek's flat cache counts.
Json UsageToJson(const TokenCounts& counts);

// llama-server's `timings`: counts, milliseconds, and tokens per second of prompt and output; queue_ms is an addition.
Json TimingsToJson(const TokenCounts& counts, const SequenceTimes& times);

// llama-server's `prompt_progress`: prompt tokens in total, from the cache, and processed; milliseconds so far.
Json ProgressToJson(const TokenCounts& counts, const SequenceTimes& times);

// OpenAI's list of log-probabilities: each token with its text, its bytes, and the likeliest tokens at its position.
Json LogprobsToJson(const Tokenizer& tokenizer, const std::vector<OutputToken>& tokens);

// Returns the text of a token; bytes that are not valid UTF-8 as "bytes:\x..".
std::string TokenText(const Tokenizer& tokenizer, TokenId id);

// Tokens per second after the first token, which comes from the prompt; 0 if there is only one token.
double TokensPerSecond(const TokenCounts& counts, const SequenceTimes& times);

// Sums the usage of a request's choices. A prompt counts once for `sequences_per_prompt` choices; of times, the longest
// counts.
class UsageSum {
 public:
  explicit UsageSum(int sequences_per_prompt) : sequences_per_prompt_(static_cast<size_t>(sequences_per_prompt)) {}

  void Set(const StepOutput& output);
  TokenCounts Total() const;
  SequenceTimes Times() const;

 private:
  struct One {
    TokenCounts counts;
    SequenceTimes times;
  };
  const size_t sequences_per_prompt_;
  std::vector<One> sequences_;
};

}  // namespace dsv4::server
