// What a reply says of itself: tokens, how likely they were, and where its time went.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "dsv4/tokenizer.h"
#include "server/base/json.h"
#include "server/schedule/generation.h"

namespace dsv4::server {

// Of usage objects: what the chosen tokens were, and how many came by drafts where some did.
Json CompletionDetails(const TokenCounts& counts);

// OpenAI's usage object, with DeepSeek's flat cache counts.
Json UsageToJson(const TokenCounts& counts);

// As llama-server's `timings`: counts, milliseconds and tokens a second of prompt and output; queue_ms is our own.
Json TimingsToJson(const TokenCounts& counts, const SequenceTimes& times);

// As llama-server's `prompt_progress`: tokens of the prompt in all, from the cache, read; milliseconds so far.
Json ProgressToJson(const TokenCounts& counts, const SequenceTimes& times);

// OpenAI's list of log-probabilities: each token with its text, bytes and the likeliest ones in its place.
Json LogprobsToJson(const Tokenizer& tokenizer, const std::vector<OutputToken>& tokens);

// Text of a token; bytes that are no UTF-8 as "bytes:\x..".
std::string TokenText(const Tokenizer& tokenizer, TokenId id);

// Tokens a second behind the first one, which reading the prompt gave; 0 where there is no second one.
double TokensPerSecond(const TokenCounts& counts, const SequenceTimes& times);

// What the choices of one request took together: prompts are counted once for `sequences_per_prompt` of them, the
// longest times count.
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
