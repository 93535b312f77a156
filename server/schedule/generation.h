// What the routes ask of the scheduler and what they get back.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/output_parser.h"
#include "dsv4/sampling.h"
#include "dsv4/service.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4::server {

class Grammar;

using Clock = std::chrono::steady_clock;

struct GenerationParams {
  SamplingParams sampling;
  int64_t min_tokens = 0;  // EOS and stop ids are not chosen before
  bool ignore_eos = false;
  bool speculate = true;  // false: no drafts, whatever the server does
  std::vector<TokenId> stop_ids;
  std::vector<std::string> stops;
  bool include_stop = false;  // the stop string is part of the text
  bool skip_special = true;
  // The tokens that the reply may have, one bit per token (bit id % 32 of word id / 32); null: all.
  std::shared_ptr<const std::vector<uint32_t>> allowed_ids;
  int prompt_logprobs = -1;  // >= 0: log-probabilities of the prompt's tokens, and of the n most likely ones
  bool progress = false;     // outputs tell how far the prompt is read, before there is a token

  // Chat: the output is parsed into reasoning, content and tool calls.
  bool chat = false;
  bool thinking = false;
  bool calls_allowed = true;     // false: the text of a call is content
  bool parallel_calls = true;    // false: the reply ends after one call
  int64_t thinking_budget = -1;  // reasoning tokens after which "</think>" is put in
  // Calls are required: each of these is the name of a function that may be called; one of them will be.
  std::vector<std::string> required_calls;
  std::vector<std::string> allowed_calls;  // calls that the model begins by itself are of these; empty: of all tools

  // Structured output. What the content is, from its first token on; reasoning before it is free.
  std::shared_ptr<const Grammar> content_grammar;
  // Calls that the model begins by itself, from the "<" of their first tag on.
  std::shared_ptr<const Grammar> call_grammar;
  bool strict_calls = false;  // call_grammar holds at every "<" with a marker, not only at the usual place of calls
  bool exact_calls = false;   // the grammar allows no malformed call and no key twice: calls are streamed
  std::shared_ptr<const std::vector<ToolSignature>> signatures;  // of the tools; null: not known
  bool plain_content = false;  // tags in the content are text, unless the content begins with calls
};

using OutputToken = SampledToken;

// What one step brought one sequence.
struct StepOutput {
  int index = 0;                    // of the sequence in its job
  std::vector<OutputToken> prompt;  // prompt tokens read in this step, where prompt_logprobs asks for them
  std::vector<OutputToken> tokens;  // chosen tokens, without EOS and stop ids
  std::string text;                 // new text (without chat)
  std::vector<OutputDelta> deltas;  // new pieces (with chat)
  FinishReason finish = FinishReason::kNone;
  std::string matched_stop;           // the stop string that ended it
  std::optional<TokenId> matched_id;  // the stop id that ended it; not EOS
  std::optional<OutputToken> end;     // EOS or the stop id that ended it
  Status error;                       // with kError
  TokenCounts counts;                 // so far
  SequenceTimes times;
};

// Provenance of a prompt's ids: how a text is split into tokens is learnt from prompts that the server encoded itself,
// and from what the model wrote behind them. Ids that a client sends may spell any text in any way.
struct SequenceSpec {
  std::shared_ptr<const std::vector<TokenId>> prompt;
  std::shared_ptr<GenerationParams> params;              // of all sequences of the request
  std::shared_ptr<const RenderedPrompt> text = nullptr;  // what `prompt` is the encoding of; null: a client's ids
  int64_t max_tokens = 0;                                // at most; 0: the prompt is only read
  size_t drawn = 0;     // the last tokens of the prompt that were drawn elsewhere as output of this sequence; not all
  uint64_t choice = 0;  // of the same prompt: its number is added to the seed
};

// One request: one or more sequences.
struct Job {
  std::string id;
  std::string tenant;  // whose prefix cache it uses (prefix_cache.h)
  std::vector<SequenceSpec> sequences;
  std::optional<Clock::time_point> deadline;
  // Called on the I/O thread, in order, once for each step that brought something.
  std::function<void(std::vector<StepOutput>&)> on_output;

  std::atomic<bool> cancelled = false;
  std::atomic<bool> paused = false;  // its reader is slow: no steps until it has caught up
  Clock::time_point submitted;
};

}  // namespace dsv4::server
