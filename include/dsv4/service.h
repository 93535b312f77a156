// Service: many requests on one engine at the same time, as `dsv4 serve` runs them, without HTTP. It batches them
// continuously, keeps a prefix cache, and applies stop strings, schemas and the chat format.
//
//   auto service = dsv4::Service::Create(*engine, *tokenizer, {.model_dir = "models/nano"});
//   auto id = (*service)->Submit({.prompt = tokenizer->Encode("Hello"), .max_tokens = 40},
//                                [](const dsv4::Event& event) { std::cout << event.text; });
//   (*service)->Drain();
//
// A service has two threads: one runs the engine, the other one ("the service's thread") calls the callbacks. While the
// service exists, nothing else may use the engine, except functions that any thread may call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/engine.h"
#include "dsv4/export.h"
#include "dsv4/output_parser.h"
#include "dsv4/sampling.h"
#include "dsv4/status.h"
#include "dsv4/tokenizer.h"
#include "dsv4/types.h"

namespace dsv4 {

// Why a request ended. kNone: it has not ended.
//   kStop       EOS, a stop id or a stop string
//   kLength     max_tokens, or the context limit
//   kToolCalls  the reply ends with calls of tools
//   kCancelled  Service::Cancel
//   kError      Event::error says why
enum class FinishReason : uint8_t { kNone, kStop, kLength, kToolCalls, kCancelled, kError };

// Numbers of tokens of a request so far.
struct TokenCounts {
  int64_t prompt = 0;
  int64_t cached = 0;      // of the prompt: taken from the prefix cache
  int64_t completion = 0;  // drawn tokens, EOS and reasoning included
  int64_t reasoning = 0;   // of the completion
  int64_t drafted = 0;     // of the completion: accepted draft tokens
  int64_t proposed = 0;    // draft tokens that were verified
  int64_t read = 0;        // of the prompt: computed or cached so far; only with Request::progress
};

// Duration of the phases of a request so far, in seconds. The phases do not overlap.
struct SequenceTimes {
  double queued = 0;  // up to its place in the batch
  double prompt = 0;  // up to its first token
  double decode = 0;  // up to its latest token
};

struct Request {
  // The prompt as ids, or as text if there are no ids. Text is encoded by the service, and parts that repeat an earlier
  // reply get the ids of that reply, so that the prefix cache finds it. Both: `prompt` is the encoding of `text`.
  std::vector<TokenId> prompt = {};
  RenderedPrompt text = {};
  SamplingParams sampling = {};
  int64_t max_tokens = 256;  // 0: the prompt is only read (for prompt_logprobs); -1: up to the context limit
  int64_t min_tokens = 0;    // neither EOS nor a stop id is drawn before
  bool ignore_eos = false;
  std::vector<TokenId> stop_ids = {};   // drawing one of these ends the request; at most 1,024
  std::vector<std::string> stops = {};  // not empty strings; at most 64 with 16 KiB
  bool include_stop = false;            // the stop string is part of the text
  bool skip_special = true;             // special tokens have no text
  int prompt_logprobs = -1;             // >= 0: of the prompt's tokens, and of the n most likely tokens in their places
  bool speculate = true;                // false: no drafts
  bool progress = false;                // events report how much of the prompt is read

  // Chat: the output is split into reasoning, content and calls (Event::deltas). `thinking`: the prompt ends inside the
  // reasoning, as RenderedPrompt's text does that ends with "<think>".
  bool chat = false;
  bool thinking = false;
  int64_t thinking_budget = -1;         // >= 0: number of reasoning tokens after which the reasoning is closed
  std::vector<std::string> tools = {};  // as ChatRequest::tools. Calls follow the schemas of their arguments
  bool parallel_calls = true;           // false: the reply ends after one call

  // The form of the text, or of the content of a chat. At most one of them. kUnsupported if this build has no grammars.
  std::string json_schema = {};  // JSON text of a schema
  std::string regex = {};        // a regular expression

  // Requests with the same name share prefixes; requests with different names learn nothing about each other.
  std::string tenant = {};
  double timeout_s = 0;  // after which the request ends with kError and kCancelled; 0: none
  // The last `first_output` tokens of the prompt are output of this request that was drawn elsewhere: they count for
  // penalties, the draws of a seed and stop strings, and are not returned again. Less than the prompt's tokens. Not
  // with a form, tools or thinking_budget (kUnsupported).
  int64_t first_output = 0;
};

// New output of a request, after a step.
struct Event {
  uint64_t request = 0;
  std::vector<SampledToken> prompt = {};      // with Request::prompt_logprobs: prompt tokens, in order
  std::vector<SampledToken> tokens = {};      // drawn tokens, in order, without EOS and stop ids
  std::string text = {};                      // new text, complete characters (without chat)
  std::vector<OutputDelta> deltas = {};       // new pieces (with chat)
  FinishReason finish = FinishReason::kNone;  // other than kNone: the last event of the request
  std::string matched_stop = {};              // the stop string that ended it
  std::optional<TokenId> end_id = {};         // EOS or the stop id that ended it
  Status error = {};                          // with kError and kCancelled
  TokenCounts counts = {};
  SequenceTimes times = {};
};

// Called on the service's thread, in order, one call at a time for all requests. A callback that takes long delays the
// others, and in the end the engine: hand the event on. Must not throw. May call Submit, Cancel, Pause and Stats. It is
// destroyed after the last event.
using EventFn = std::function<void(const Event&)>;

struct ServiceOptions {
  // Folder of the model, for SubmitJson: defaults of generation_config.json. "": none.
  std::string model_dir = {};
  ChatDialect dialect = ChatDialect::kV4Preview;  // for SubmitJson (DetectDialect)
  // Special tokens in Request::text and in the messages of SubmitJson.
  SpecialTokensInContent special_tokens_in_content = SpecialTokensInContent::kText;
  bool default_thinking = true;  // for SubmitJson: reasoning in chats that do not set it

  int64_t max_running = 64;     // maximum number of requests in the batch
  int64_t max_waiting = 256;    // maximum number of requests in the queue
  int64_t prefill_chunk = 512;  // prompt tokens per step
  double max_gap_s = 0.25;      // target for the time between two tokens of a request while others are read; 0: none
  double target_ttft_s = 2;     // as ServerOptions::target_ttft_s
  double gather_s = 0;          // an idle service waits until no request came for this time; at most ten times as long
  int64_t kv_budget_bytes = 0;  // KV of all requests and of the prefix cache; 0: DefaultKvBudget
  bool prefix_cache = true;
  int64_t prefix_interval = 4096;  // tokens between two cached prefixes of a long prompt; 0: only the whole prompt
  bool restart_device = true;      // a device that has failed is opened again; false: every later request fails
  // Optional. Gets one line each: "warning"; "device-failed", "device-restarted". Any thread of the service; must not
  // throw.
  std::function<void(std::string_view event, const std::string& what)> on_notice = {};
};

struct ServiceStats {
  int64_t open = 0;           // requests that have not had their last event
  int64_t running = 0;        // of them in the batch
  int64_t waiting = 0;        // of them in the queue
  int64_t kv_used_bytes = 0;  // KV of the requests in the batch
  int64_t kv_kept_bytes = 0;  // KV of the prefix cache
  int64_t kv_budget_bytes = 0;
  uint64_t prompt_tokens = 0;  // computed since the start
  uint64_t generated_tokens = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0;  // prompt tokens that were looked up, and found, in the prefix cache
  bool device_failed = false;                    // the device is being opened again, or is gone
  bool draining = false;                         // Drain or Stop was called
};

class DSV4_API Service {
 public:
  // Engine and tokenizer must outlive the service. Errors: kInvalidArgument (the budget is too small),
  // kResourceExhausted (threads).
  static Result<std::unique_ptr<Service>> Create(Engine& engine, const Tokenizer& tokenizer,
                                                 const ServiceOptions& options);
  // As Stop.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Any thread may call the functions below.

  // Adds a request and returns its number, which is never used again. If it is accepted, it gets exactly one last
  // event (Event::finish), whatever happens; the first event may come before Submit returns. Errors, after which
  // nothing is called: kInvalidArgument (names the field), kUnsupported, kResourceExhausted (the queue is full or the
  // service ends: try again later, or elsewhere). A schema is compiled later; if that fails, the last event has the
  // error.
  Result<uint64_t> Submit(Request request, EventFn on_event);

  // The same for the body of POST /v1/chat/completions (with "messages") or /v1/completions (with "prompt"), with the
  // fields that docs/serving/routes.md lists. Fields about the form of a HTTP reply have no effect ("stream", "echo"
  // ...); "n" must be 1.
  Result<uint64_t> SubmitJson(std::string_view body, EventFn on_event, const std::string& tenant = "");

  // Ends a request: it gets only its last event, with kCancelled, or with another reason if it has just ended. Error:
  // kNotFound (it has had its last event, or there is no such request).
  Status Cancel(uint64_t request);

  // Stops and continues the steps of a request whose reader is slow. Its KV stays in memory. No effect on requests that
  // have ended.
  void Pause(uint64_t request, bool paused);

  ServiceStats Stats() const;

  // Refuses further requests. Returns true when every request has had its last event, or false after `timeout_s`
  // (below 0: waits as long as it takes). In a callback it returns at once.
  bool Drain(double timeout_s = -1);

  // Ends all requests: each gets its last event (kError with kResourceExhausted) before Stop returns. Ends
  // a step that is running (Engine::SetStopped). In a callback Stop only begins. Further calls have no effect.
  void Stop();

 private:
  class Impl;
  explicit Service(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4
