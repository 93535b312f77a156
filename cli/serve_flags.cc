// Flags of `dsv4 serve`.
#include <string>

#include "flags.h"

namespace dsv4::cli {

namespace {

void AddNetworkFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Network");
  ServerOptions* s = &o->server;
  AddText(c, "--host", "ADDRESS", "address to listen on (default 127.0.0.1: this machine only)",
          [=](const std::string& text) {
            if (text.empty()) throw UsageError("--host is empty; give an address (0.0.0.0 or ::: all of this machine)");
            s->host = text;
          });
  AddInteger(c, "--port", &s->port, 0, 65535, "port to listen on (default 8000; 0: any free port)");
  AddInteger(c, "--metrics-port", &s->metrics_port, 0, 65535,
             "second port, only for /metrics and /health, without key and TLS (default: none; 0: any free port)");
  AddPath(c, "--tls-cert", &s->tls_cert, "serve HTTPS with this certificate (PEM, with its chain)");
  AddPath(c, "--tls-key", &s->tls_key, "private key of the certificate (PEM)");
}

void AddAccessFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Access");
  ServerOptions* s = &o->server;
  AddTexts(c, "--api-key", "KEY",
           "require this key; the process list shows it, so --api-key-file is safer (may be repeated)",
           [=](const std::string& key) {
             if (!IsUsableKey(key)) throw UsageError("--api-key is empty or not visible ASCII; give another key");
             s->api_keys.push_back(key);
           });
  AddPath(c, "--api-key-file", &o->api_key_file,
          "require one of the keys in this file; each line has a key, or a label for the log and a key");
  c->add_flag("--share-cache", s->share_cache, "let all keys use one prefix cache (default: one cache per key)");
  AddTexts(c, "--cors-origin", "ORIGIN",
           "origin whose web pages may use the server; *: any origin (default: none; may be repeated)",
           [=](const std::string& text) {
             if (!text.empty()) s->cors_origins.push_back(text);
           });
  AddTexts(
      c, "--allowed-host", "NAME",
      "host name that requests may use, in addition to localhost, 127.* and --host; without the flag, a server that "
      "other machines reach accepts any name (may be repeated)",
      [=](const std::string& name) {
        if (name.empty() || name.find_first_of("/ \t") != std::string::npos) {
          throw UsageError("--allowed-host is '" + name + "'; accepted: a host name, for example dsv4.example");
        }
        s->allowed_hosts.push_back(name);
      });
  AddInteger(c, "--key-guesses", &o->key_guesses, 0, 1000000,
             "maximum number of wrong keys per second from one address; more get 429 (default 5; 0: no limit)");
}

void AddModelNames(CLI::App* c, ServerOptions* s) {
  const FlagGroup group(c, "Names of the model");
  AddTexts(c, "--served-model-name", "NAME",
           "name of the model for clients (default: the folder's name; may be repeated: replies have the first)",
           [=](const std::string& name) {
             if (name.empty()) throw UsageError("--served-model-name is empty; give a name");
             if (s->model_name.empty()) {
               s->model_name = name;
             } else {
               s->other_names.push_back(name);
             }
           });
  c->add_flag("--strict-model", s->strict_model, "reply 404 to requests for another model");
}

void AddChatFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Chats");
  ServerOptions* s = &o->server;
  AddDialect(c, &o->dialect);
  AddSpecialTokens(c, &s->special_tokens_in_content, "text");
  AddChoice<bool>(c, "--default-thinking", &s->default_thinking, {{"on", true}, {"off", false}},
                  "reasoning in OpenAI requests that do not set it (default on)");
  AddChoice<std::string>(c, "--reasoning-field", &s->reasoning_field,
                         {{"reasoning_content", "reasoning_content"}, {"reasoning", "reasoning"}, {"both", "both"}},
                         "name of the reasoning field in chat replies (default reasoning_content)");
}

void AddLimitFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Limits");
  ServerOptions* s = &o->server;
  AddChoice<ServeOptions::Goal>(c, "--goal", &o->goal,
                                {{"latency", ServeOptions::Goal::kLatency},
                                 {"balanced", ServeOptions::Goal::kBalanced},
                                 {"throughput", ServeOptions::Goal::kThroughput}},
                                "sets the defaults of --max-gap and --max-concurrent (default balanced)");
  AddText(c, "--max-gap", "N",
          "target in milliseconds for the time between two tokens of a stream during prefill (default 250; with --goal "
          "latency 60, throughput 0: none)",
          [=](const std::string& text) { o->max_gap_ms = ReadInteger("--max-gap", text, 0, 1000000); });
  AddText(c, "--target-ttft", "X",
          "target in seconds for the time to the first token; when prompts wait longer, steps may exceed --max-gap by "
          "60 % (default 2; 0: never)",
          [=](const std::string& text) {
            double seconds = 0;
            if (!ParseWhole(text, &seconds) || !(seconds >= 0 && seconds <= 3600)) {
              throw UsageError("--target-ttft is '" + text + "'; accepted: seconds from 0 to 3600");
            }
            s->target_ttft_s = seconds;
          });
  AddText(c, "--max-concurrent", "N",
          "maximum number of sequences in the batch (default 64; with --goal latency 16, throughput 128)",
          [=](const std::string& text) { o->max_concurrent = ReadInteger("--max-concurrent", text, 1, 4096); });
  AddInteger(c, "--max-queue", &s->max_waiting, 1, 1 << 20,
             "maximum number of waiting sequences; more get 429 (default 256)");
  AddInteger(c, "--max-prompt", &s->max_prompt_tokens, 0, kMaxInt64,
             "maximum number of tokens in a prompt (default 0: the context limit)");
  AddInteger(c, "--max-connections", &s->max_connections, 1, 1 << 20,
             "maximum number of open connections (default 1024)");
  AddBytes(c, "--max-body", &o->max_body, "largest request body (default 32MiB)");
  AddBytes(c, "--max-body-total", &o->max_body_total,
           "memory for all request bodies, each until its reply is read; more get 503 (default 256MiB)");
  AddBytes(
      c, "--min-rate", &o->min_rate,
      "minimum bytes per second of a request body, and of a client that reads its reply slowly (default 4KiB; 0: no "
      "minimum)");
  AddInteger(c, "--header-timeout", &o->header_timeout_s, 1, 1 << 20,
             "seconds for the header of a request (default 30)");
  AddInteger(c, "--body-timeout", &o->body_timeout_s, 1, 1 << 20,
             "seconds over which a request body must keep --min-rate (default 30)");
  AddInteger(c, "--write-timeout", &o->write_timeout_s, 1, 1 << 20,
             "seconds over which the reader of a reply must keep --min-rate (default 60)");
}

void AddKvFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "KV and prefix cache");
  ServerOptions* s = &o->server;
  AddBytes(c, "--kv-budget", &s->kv_budget_bytes,
           "memory for KV, with the prefix cache (default: half of the free memory)");
  AddChoice<bool>(
      c, "--prefix-cache", &s->prefix_cache, {{"on", true}, {"off", false}},
      "keep the KV of prompts for later prompts with the same beginning, within the KV budget (default on)");
  AddInteger(c, "--prefix-interval", &s->prefix_interval, 0, kMaxInt64,
             "tokens between two cached prefixes of a long prompt (default 4096; 0: only the whole prompt)");
  AddText(c, "--kv-disk", kFolderType, "folder for KV that does not fit in memory; kept over restarts (default: none)",
          [=](const std::string& text) {
            if (text.empty()) throw UsageError("--kv-disk is empty; give a folder");
            s->kv_disk = text;
          });
  AddBytes(c, "--kv-disk-bytes", &s->kv_disk_bytes, "maximum size of the folder of --kv-disk (default 32GiB)");
  AddBytes(c, "--store-responses", &s->store_responses_bytes,
           "bytes of responses kept for previous_response_id, in memory and again in the folder of --kv-disk (default "
           "0: none)");
  AddInteger(
      c, "--kv-events", &s->kv_events_port, 0, 65535,
      "publish on this port over ZeroMQ which tokens are cached, as vLLM does (default: none; 0: any free port)");
  AddText(c, "--kv-events-topic", "TEXT", "topic of the messages of --kv-events (default kv@HOST:PORT@MODEL)",
          [=](const std::string& text) { s->kv_events_topic = text; });
}

void AddOperationFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Operation");
  ServerOptions* s = &o->server;
  AddInteger(c, "--request-timeout", &o->request_timeout_s, 0, 1 << 30,
             "seconds for one request (default 3600; 0: no limit)");
  AddInteger(c, "--drain-timeout", &o->drain_timeout_s, 0, 1 << 30,
             "seconds for running requests after SIGTERM (default 30)");
  AddInteger(c, "--stall-timeout", &o->stall_timeout_s, 0, 1 << 30,
             "seconds of one step after which /health fails (default 120; 0: never)");
  AddChoice<bool>(c, "--on-device-failure", &s->restart_device, {{"restart", true}, {"exit", false}},
                  "if a GPU fails: open it again and reload the model, or end the server with status 1 (default "
                  "restart)");
  AddInteger(c, "--ping", &o->ping_s, 0, 1 << 20,
             "seconds of silence after which a stream gets a ping (default 10; 0: none)");
  AddChoice<bool>(c, "--log-format", &s->log_json, {{"text", false}, {"json", true}},
                  "format of the log (default text)");
  AddInteger(c, "--log-interval", &o->log_interval_s, 0, 1 << 20,
             "seconds between two log lines about the load (default 10; 0: none)");
  AddPath(c, "--trace-steps", &s->trace_steps,
          "write one line for each of the last 32768 steps to this file when the server ends: tokens, times, limits");
  AddText(c, "--otlp-endpoint", "URL",
          "send request spans to this collector, in OTLP as JSON over HTTP: http://HOST[:4318][/v1/traces]",
          [=](const std::string& text) { s->otlp_endpoint = text; });
}

}  // namespace

void AddServeFlags(CLI::App* c, ServeOptions* o) {
  AddNetworkFlags(c, o);
  AddModelNames(c, &o->server);
  AddAccessFlags(c, o);
  AddChatFlags(c, o);
  AddLimitFlags(c, o);
  AddKvFlags(c, o);
  AddOperationFlags(c, o);
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddCountExperts(c, &o->model, &o->count_experts_file);
  AddSyntheticFlags(c, &o->model);
}

void CheckServeFlags(const ServeOptions& o) {
  CheckSynthetic(o.model);
  if (o.max_body_total > 0 && o.max_body_total < o.max_body) {
    throw UsageError("--max-body-total is " + std::to_string(o.max_body_total) + ", less than --max-body " +
                     std::to_string(o.max_body) + "; raise it, or lower --max-body");
  }
  if (o.server.tls_cert.empty() != o.server.tls_key.empty())
    throw UsageError("--tls-cert and --tls-key need each other: give a certificate and its key");
  if (o.server.metrics_port > 0 && o.server.metrics_port == o.server.port)
    throw UsageError("--metrics-port equals --port; give another number");
}

}  // namespace dsv4::cli
