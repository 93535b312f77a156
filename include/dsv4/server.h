// The HTTP server: OpenAI- and Anthropic-compatible routes on one engine, with continuous batching.
// docs/serving/routes.md lists the routes and fields, docs/serving/operations.md the metrics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/engine.h"
#include "dsv4/experts.h"
#include "dsv4/export.h"
#include "dsv4/status.h"
#include "dsv4/tokenizer.h"

namespace dsv4 {

struct MemoryPlan;

struct ServerOptions {
  std::string model_dir;                 // for generation_config.json and tokenizer_config.json
  std::string model_name;                // name in /v1/models and in replies
  std::vector<std::string> other_names;  // more names that requests may use for the model
  std::string host = "127.0.0.1";
  int port = 8000;                // 0: any free port, which the start-up line reports
  int metrics_port = -1;          // second port for /metrics and /health*, without keys and TLS; 0: any free; -1: none
  std::string tls_cert, tls_key;  // PEM files; both or none. "": plain HTTP
  std::vector<std::string> api_keys;         // empty: no key is required
  std::vector<std::string> key_labels = {};  // label of each key in the log; missing or "": "key-N"
  bool share_cache = false;                  // all keys use one prefix cache; false: one per key
  std::vector<std::string> cors_origins;     // empty: no CORS headers; "*": any origin
  // Host names that requests may use, in addition to localhost, 127.0.0.0/8, ::1 and `host`. Empty: if other machines
  // can reach `host`, requests may use any name.
  std::vector<std::string> allowed_hosts;
  double key_guesses = 5;  // maximum number of wrong keys per second from one address; 0: no limit

  ChatDialect dialect = ChatDialect::kV4Preview;
  // Special tokens in chat messages. With kText, the content of users and tools can neither end nor begin a turn.
  SpecialTokensInContent special_tokens_in_content = SpecialTokensInContent::kText;
  bool default_thinking = true;  // reasoning in OpenAI chat and responses requests that do not set it
  std::string reasoning_field = "reasoning_content";  // or "reasoning", or "both"
  bool strict_model = false;                          // replies 404 to a request for another model name

  int64_t max_running = 64;  // maximum number of sequences in the batch
  // The engine decodes more than kMaxDecodeRows sequences in a pass (engine.h). The start-up log reports it.
  bool wide_steps = false;
  int num_ranks = 1;            // of the engine; reported to clients
  int64_t max_waiting = 256;    // maximum number of sequences in the queue; more get 429
  int64_t prefill_chunk = 512;  // prompt tokens per step
  double max_gap_s = 0.25;      // target for the time between two tokens of a stream during prefill; 0: none
  // Target for the seconds to a first token. While a prompt has waited longer than half of it, a step may take up to
  // 1.6 times max_gap_s, or 50 ms more than max_gap_s if that is longer. 0: never.
  double target_ttft_s = 2;
  // An idle engine waits until no prompt has arrived for this time, at most ten times this time, before it begins.
  double gather_s = 0;
  int64_t kv_budget_bytes = 0;
  bool prefix_cache = true;
  int64_t prefix_interval = 4096;  // tokens between two cached prefixes of a long prompt; 0: only the whole prompt
  std::string kv_disk;             // folder for KV that does not fit in memory; "": none
  int64_t kv_disk_bytes = int64_t{32} << 30;
  // Bytes of responses stored for previous_response_id in memory, and the same number of bytes on the disk.
  int64_t store_responses_bytes = 0;
  int kv_events_port = -1;      // ZeroMQ port that publishes for routers which tokens are cached; 0: any free; -1: none
  std::string kv_events_topic;  // "": kv@HOST:PORT@MODEL
  std::string count_experts_file;  // file for expert counts, written every minute and at the end (experts.h); "": none
  ExpertCounts counted_experts;    // contents of the file, to which counts are added

  size_t max_body_bytes = size_t{32} << 20;
  size_t max_body_total = size_t{256} << 20;  // for all requests; each counts until its reply has been read
  size_t max_connections = 1024;              // plus 16 for /health
  double header_timeout_s = 30;               // for the header of a request, from its first byte
  // Periods in which a request body, and a client that reads a reply too slowly, must keep min_rate.
  double body_timeout_s = 30, write_timeout_s = 60;
  size_t min_rate = size_t{4} << 10;  // bytes per second; 0: any progress is enough
  int64_t max_prompt_tokens = 0;      // 0: the context limit
  double request_timeout_s = 3600;    // 0: none
  double drain_timeout_s = 30;        // for running requests after SIGTERM or SIGINT
  double stall_timeout_s = 120;       // a step that takes longer makes /health fail
  bool restart_device = true;         // reopens a device that has failed; false: Serve returns, for a supervisor
  double ping_s = 10;                 // silence of a stream after which a comment is sent; 0: never
  std::string trace_steps;  // file with one line for each of the last 32,768 steps, written at the end; "": none
  bool log_json = false;
  double log_interval_s = 10;  // between two log lines about the load; 0: none
  std::string otlp_endpoint;   // http://HOST[:PORT][/PATH] of a collector that receives spans; "": none
  // Optional. Gets each line of the log, without its newline, instead of standard error. Called on a thread of the
  // server; must not throw.
  std::function<void(std::string_view line)> on_log = {};
  // Optional; may be called at any time. Returns true if a stop signal arrived before Serve installed its own handlers.
  // Serve then returns at once.
  std::function<bool()> interrupted;
};

// Serves until SIGTERM or SIGINT, then finishes the running requests, for at most drain_timeout_s. A second signal ends
// the process at once with status 0. Logs to standard error. Errors: kInvalidArgument, kResourceExhausted (the port is
// in use), and the error of a device that failed, if restart_device is false or the restart failed.
DSV4_API Status Serve(Engine& engine, const Tokenizer& tokenizer, const ServerOptions& options);

// A server that runs on threads of its own, in a program that does other things too. It installs no signal handlers
// and does not end the process. While it exists, nothing else may use the engine, except functions that any thread may
// call. A process may have several, each with its engine.
class DSV4_API HttpServer {
 public:
  // Opens the ports and serves. Engine and tokenizer must outlive the server. Empty options: model_name "dsv4",
  // kv_budget_bytes DefaultKvBudget; `interrupted` is not called. Same errors as Serve.
  static Result<std::unique_ptr<HttpServer>> Start(Engine& engine, const Tokenizer& tokenizer,
                                                   const ServerOptions& options);
  // As Stop.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Any thread may call the functions below.

  int port() const;          // the one that was chosen for port 0
  int metrics_port() const;  // -1: none

  // Begins to end: refuses further requests and finishes the running ones, for at most `timeout_s` seconds (below 0:
  // drain_timeout_s). Returns at once; Wait waits for the end. A second call may only shorten the time.
  void Drain(double timeout_s = -1);
  // Ends: running requests get errors. Returns when the ports are closed and nothing uses the engine any more.
  void Stop();
  // Returns when the server has ended. Error: of a device that failed, as of Serve.
  Status Wait();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Returns the KV budget for an engine that does nothing else: half of the free memory, 8 GiB if that is not known, and
// at least two sequences.
DSV4_API int64_t DefaultKvBudget(const Engine& engine);

// Checks that the budget is large enough for a sequence. Error: kInvalidArgument, which names --kv-budget.
DSV4_API Status CheckKvBudget(int64_t budget_bytes, const ModelInfo& model);

// Checks the options that do not need a model, before the model is loaded. Finds: addresses and ports that cannot be
// used, a key that does not match the certificate, a folder that another server uses, an invalid collector or origin.
// Releases everything that it opens. Errors: kInvalidArgument, kResourceExhausted (a port is in use).
DSV4_API Status CheckServing(const ServerOptions& options);

// Writes the first line of the JSON log to standard error. For EngineOptions::on_plan.
DSV4_API void LogPlan(const MemoryPlan& plan);

}  // namespace dsv4
