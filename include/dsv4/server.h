// The HTTP server: OpenAI- and Anthropic-compatible routes over one engine, with continuous batching.
// docs/serving/routes.md lists routes and fields, docs/serving/operations.md metrics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/engine.h"
#include "dsv4/experts.h"
#include "dsv4/status.h"
#include "dsv4/tokenizer.h"

namespace dsv4 {

struct MemoryPlan;

struct ServerOptions {
  std::string model_dir;                 // for generation_config.json and tokenizer_config.json
  std::string model_name;                // what /v1/models says and replies name
  std::vector<std::string> other_names;  // that requests may call the model by as well
  std::string host = "127.0.0.1";
  int port = 8000;                    // 0: any free one; the start-up line tells which
  int metrics_port = -1;              // /metrics and /health* alone, without a key or TLS; 0: any free one; -1: none
  std::string tls_cert, tls_key;      // PEM files, both or none; "": plain HTTP
  std::vector<std::string> api_keys;  // empty: none is asked for
  std::vector<std::string> key_labels = {};  // of each, for the log; where there is none, or "": "key-N"
  bool share_cache = false;                  // of several keys: all use one prefix cache instead of one each
  std::string cors_origin;                   // "": no CORS headers
  // Names beside localhost, 127.0.0.0/8, ::1 and `host` that requests may call this server by. With none, and a host
  // that others reach, any name will do.
  std::vector<std::string> allowed_hosts;
  double key_guesses = 5;  // wrong keys a second from one address; 0: any

  ChatDialect dialect = ChatDialect::kV4Preview;
  // Of chats. As text, what users and tools write can neither end a turn nor open one.
  SpecialTokensInContent special_tokens_in_content = SpecialTokensInContent::kText;
  bool default_thinking = true;  // of OpenAI's chat and responses routes, where a request does not say
  std::string reasoning_field = "reasoning_content";  // or "reasoning", or "both"
  bool strict_model = false;                          // a request for another model name gets 404

  int64_t max_running = 64;  // sequences in the batch
  // the engine decodes more than kMaxDecodeRows of them in a pass (engine.h): said at the start
  bool wide_steps = false;
  int num_ranks = 1;            // of the engine, for clients that ask
  int64_t max_waiting = 256;    // sequences in the queue; more get 429
  int64_t prefill_chunk = 512;  // prompt tokens of one step
  double max_gap_s = 0.25;      // aim of the time between two tokens of a stream while prompts are read; 0: no bound
  double gather_s = 0;          // an idle engine begins when no prompt came for so long, or ten times as much is over
  int64_t kv_budget_bytes = 0;
  bool prefix_cache = true;
  int64_t cut_interval = 4096;  // tokens between two points of a long prompt that others can go on from; 0: none
  std::string kv_disk;          // folder for KV that leaves memory; "": none
  int64_t kv_disk_bytes = int64_t{32} << 30;
  int64_t store_responses_bytes = 0;  // of responses kept for previous_response_id, in memory and as much on the disk
  int kv_events_port = -1;            // for routers that want to know which tokens are kept (ZeroMQ); 0: any; -1: none
  std::string kv_events_topic;        // "": kv@HOST:PORT@MODEL
  std::string count_experts_file;     // counts of experts, once a minute and at the end (dsv4/experts.h); "": none
  ExpertCounts counted_experts;       // what it holds, to which is added

  size_t max_body_bytes = size_t{32} << 20;
  size_t max_body_total = size_t{256} << 20;  // of all requests, each until its reply has been taken
  size_t max_connections = 1024;              // and 16 more for /health
  double header_timeout_s = 30;               // for the header of a request, from its first byte
  // in which bodies, and readers of replies that wait, must keep min_rate
  double body_timeout_s = 30, write_timeout_s = 60;
  size_t min_rate = size_t{4} << 10;  // bytes a second; 0: any progress will do
  int64_t max_prompt_tokens = 0;      // 0: the context
  double request_timeout_s = 3600;    // 0: none
  double drain_timeout_s = 30;        // after SIGTERM or SIGINT
  double stall_timeout_s = 120;       // a step that takes longer makes /health false
  bool restart_device = true;         // that has failed; else the server ends, for its supervisor to start it anew
  double ping_s = 10;                 // silence of a stream after which a comment is sent; 0: never
  bool log_json = false;
  double log_interval_s = 10;  // between two lines that say how much work is being done; 0: none
  std::string otlp_endpoint;   // http://HOST[:PORT][/PATH] of a collector that takes spans; "": none
  // Whether a signal to stop came before Serve catches them, as it does from its start on: then it ends at once. Any
  // time; null: none did.
  std::function<bool()> interrupted;
};

// Serves until SIGTERM or SIGINT, then finishes what is being answered, up to the drain time-out; a second signal ends
// the process at once, with the status 0. Prints to standard error. Errors: kInvalidArgument, kResourceExhausted (the
// port is taken), and of a device that failed and was not to be opened anew, or could not be.
Status Serve(Engine& engine, const Tokenizer& tokenizer, const ServerOptions& options);

// Whether the budget holds a sequence. Error: kInvalidArgument, naming --kv-budget.
Status CheckKvBudget(int64_t budget_bytes, const ModelInfo& model);

// What can be found wrong without a model, which may take minutes to load: addresses and ports that cannot be listened
// on, a certificate that is not the key's, a folder that another server has, a collector or an origin that is none.
// What it takes to find out is given back. Errors: kInvalidArgument, kResourceExhausted (a port is taken).
Status CheckServing(const ServerOptions& options);

// The first line of the log in JSON, on standard error: for EngineOptions::on_plan.
void LogPlan(const MemoryPlan& plan);

}  // namespace dsv4
