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
            if (text.empty()) throw UsageError("--host is empty; 0.0.0.0 and :: are all addresses of this machine");
            s->host = text;
          });
  AddInteger(c, "--port", &s->port, 0, 65535, "port to listen on (default 8000; 0: any free one)");
  AddInteger(c, "--metrics-port", &s->metrics_port, 0, 65535,
             "a second port, for /metrics and /health alone: no key, no TLS (default: none; 0: any free one)");
  AddPath(c, "--tls-cert", &s->tls_cert, "serve HTTPS with this certificate (PEM, with those that it is signed by)");
  AddPath(c, "--tls-key", &s->tls_key, "the certificate's key (PEM)");
}

void AddAccessFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Access");
  ServerOptions* s = &o->server;
  AddTexts(c, "--api-key", "KEY",
           "ask for this key; others see it in the process list, so better --api-key-file (may be repeated)",
           [=](const std::string& key) {
             if (!IsUsableKey(key)) throw UsageError("--api-key is empty or has other than visible ASCII characters");
             s->api_keys.push_back(key);
           });
  AddPath(c, "--api-key-file", &o->api_key_file,
          "ask for one of the keys in this file, one a line, behind a label for the log or without");
  c->add_flag("--share-cache", s->share_cache,
              "all keys use one prefix cache (default: one each, where there are several)");
  AddText(c, "--cors-origin", "ORIGIN", "let pages of this origin use the server (default: none)",
          [=](const std::string& text) { s->cors_origin = text; });
  AddTexts(
      c, "--allowed-host", "NAME",
      "a name besides localhost, 127.* and --host that requests may call this server by; without it a host that others "
      "reach goes by any (may be repeated)",
      [=](const std::string& name) {
        if (name.empty() || name.find_first_of("/ \t") != std::string::npos) {
          throw UsageError("--allowed-host is '" + name +
                           "'; accepted: a host's name as a URL has it, "
                           "for example dsv4.example");
        }
        s->allowed_hosts.push_back(name);
      });
  AddInteger(c, "--key-guesses", &o->key_guesses, 0, 1000000,
             "wrong keys a second from one address, beyond which it gets 429 (default 5; 0: any)");
}

void AddModelNames(CLI::App* c, ServerOptions* s) {
  const FlagGroup group(c, "Names of the model");
  AddTexts(c, "--served-model-name", "NAME",
           "the model's name for clients (default: the folder's; may be repeated: replies have the first)",
           [=](const std::string& name) {
             if (name.empty()) throw UsageError("--served-model-name is empty");
             if (s->model_name.empty()) {
               s->model_name = name;
             } else {
               s->other_names.push_back(name);
             }
           });
  c->add_flag("--strict-model", s->strict_model, "404 for requests that name another model");
}

void AddChatFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Chats");
  ServerOptions* s = &o->server;
  AddDialect(c, &o->dialect);
  AddSpecialTokens(c, &s->special_tokens_in_content, "text");
  AddChoice<bool>(c, "--default-thinking", &s->default_thinking, {{"on", true}, {"off", false}},
                  "reasoning where an OpenAI request does not say (default on)");
  AddChoice<std::string>(c, "--reasoning-field", &s->reasoning_field,
                         {{"reasoning_content", "reasoning_content"}, {"reasoning", "reasoning"}, {"both", "both"}},
                         "name of the reasoning in chat replies (default reasoning_content)");
}

void AddLimitFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Limits");
  ServerOptions* s = &o->server;
  AddChoice<ServeOptions::Goal>(c, "--goal", &o->goal,
                                {{"latency", ServeOptions::Goal::kLatency},
                                 {"balanced", ServeOptions::Goal::kBalanced},
                                 {"throughput", ServeOptions::Goal::kThroughput}},
                                "what --max-gap and --max-concurrent are where they are not given (default balanced)");
  AddText(c, "--max-gap", "N",
          "aim in milliseconds of the time between two tokens of a stream while prompts are read (default 250; with "
          "--goal latency 60, throughput 0: none)",
          [=](const std::string& text) { o->max_gap_ms = ReadInteger("--max-gap", text, 0, 1000000); });
  AddText(c, "--max-concurrent", "N", "sequences in the batch (default 64; with --goal latency 16, throughput 128)",
          [=](const std::string& text) { o->max_concurrent = ReadInteger("--max-concurrent", text, 1, 4096); });
  AddInteger(c, "--max-queue", &s->max_waiting, 1, 1 << 20, "sequences that wait; more get 429 (default 256)");
  AddInteger(c, "--max-prompt", &s->max_prompt_tokens, 0, kMaxInt64, "tokens of a prompt (default 0: the context)");
  AddInteger(c, "--max-connections", &s->max_connections, 1, 1 << 20, "open connections (default 1024)");
  AddBytes(c, "--max-body", &o->max_body, "largest request body (default 32MiB)");
  AddBytes(c, "--max-body-total", &o->max_body_total,
           "memory for the bodies of all requests, each until its reply is read; more get 503 (default 256MiB)");
  AddBytes(
      c, "--min-rate", &o->min_rate,
      "bytes a second at least, of bodies that arrive and of readers that let a reply wait (default 4KiB; 0: any)");
  AddInteger(c, "--header-timeout", &o->header_timeout_s, 1, 1 << 20, "seconds for a request's header (default 30)");
  AddInteger(c, "--body-timeout", &o->body_timeout_s, 1, 1 << 20,
             "seconds in which a body must keep --min-rate (default 30)");
  AddInteger(c, "--write-timeout", &o->write_timeout_s, 1, 1 << 20,
             "seconds in which a reader must keep --min-rate (default 60)");
}

void AddKvFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "KV and prefix cache");
  ServerOptions* s = &o->server;
  AddBytes(c, "--kv-budget", &s->kv_budget_bytes,
           "memory for KV, the prefix cache included (default: half of what is free)");
  AddChoice<bool>(c, "--prefix-cache", &s->prefix_cache, {{"on", true}, {"off", false}},
                  "keeps KV for prompts that begin alike, within the KV budget (default on)");
  AddInteger(c, "--cut-interval", &s->prefix_interval, 0, kMaxInt64,
             "tokens between the points of a long prompt that others can go on from (default 4096; 0: its end only)");
  AddText(c, "--kv-disk", kFolderType, "folder for KV that leaves memory, kept over restarts",
          [=](const std::string& text) {
            if (text.empty()) throw UsageError("--kv-disk needs a folder");
            s->kv_disk = text;
          });
  AddBytes(c, "--kv-disk-bytes", &s->kv_disk_bytes, "size of that folder (default 32GiB)");
  AddBytes(c, "--store-responses", &s->store_responses_bytes,
           "keep responses for previous_response_id: so much in memory, and again in the folder of --kv-disk "
           "(default 0: none)");
  AddInteger(c, "--kv-events", &s->kv_events_port, 0, 65535,
             "publish on this port over ZeroMQ which tokens' KV is kept, as vLLM does (default: none; 0: any free "
             "port)");
  AddText(c, "--kv-events-topic", "TEXT", "topic of those messages (default kv@HOST:PORT@MODEL)",
          [=](const std::string& text) { s->kv_events_topic = text; });
}

void AddOperationFlags(CLI::App* c, ServeOptions* o) {
  const FlagGroup group(c, "Operation");
  ServerOptions* s = &o->server;
  AddInteger(c, "--request-timeout", &o->request_timeout_s, 0, 1 << 30,
             "seconds for one request (default 3600; 0: any)");
  AddInteger(c, "--drain-timeout", &o->drain_timeout_s, 0, 1 << 30,
             "seconds that running requests get after SIGTERM (default 30)");
  AddInteger(c, "--stall-timeout", &o->stall_timeout_s, 0, 1 << 30,
             "seconds of one step after which /health turns false (default 120; 0: never)");
  AddChoice<bool>(c, "--on-device-failure", &s->restart_device, {{"restart", true}, {"exit", false}},
                  "what follows when the GPU fails: it is opened anew, or the server ends with status 1 "
                  "(default restart)");
  AddInteger(c, "--ping", &o->ping_s, 0, 1 << 20,
             "seconds of silence after which a stream gets a ping (default 10; 0: none)");
  AddChoice<bool>(c, "--log-format", &s->log_json, {{"text", false}, {"json", true}}, "form of the log (default text)");
  AddInteger(c, "--log-interval", &o->log_interval_s, 0, 1 << 20,
             "seconds between two lines that say how much work is being done (default 10; 0: none)");
  AddText(c, "--otlp-endpoint", "URL",
          "send spans of requests to this collector, by OTLP as JSON over HTTP: http://HOST[:4318][/v1/traces]",
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
    throw UsageError("--max-body-total is " + std::to_string(o.max_body_total) +
                     ", less than one body may take (--max-body " + std::to_string(o.max_body) + ")");
  }
  if (o.server.tls_cert.empty() != o.server.tls_key.empty())
    throw UsageError("--tls-cert and --tls-key come together: a certificate and its key");
  if (o.server.metrics_port > 0 && o.server.metrics_port == o.server.port)
    throw UsageError("--metrics-port is --port; give it another number");
}

}  // namespace dsv4::cli
