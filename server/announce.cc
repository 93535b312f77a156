#include "server/announce.h"

#include <algorithm>
#include <string>

#include "dsv4/chat.h"
#include "dsv4/inspect.h"
#include "server/metrics/metrics.h"

namespace dsv4::server {

namespace {

std::string ServerUrl(const char* scheme, const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return std::string(scheme) + "://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

void AnnounceMemory(const Log& log, const ServerOptions& options, const ModelInfo& model) {
  const auto room = static_cast<double>(std::max<int64_t>(options.kv_budget_bytes - model.kv_fixed_bytes, 0));
  log.Line("memory", {{"kv_budget", LogBytes{options.kv_budget_bytes}},
                      {"per_sequence", LogBytes{model.kv_fixed_bytes}},
                      {"per_1k_tokens", LogBytes{static_cast<int64_t>(model.kv_bytes_per_token * 1000)}},
                      {"tokens_of_one_sequence",
                       model.kv_bytes_per_token > 0 ? static_cast<int64_t>(room / model.kv_bytes_per_token) : 0}});
}

void AnnounceWarnings(const Log& log, const ServerOptions& options, const ModelInfo& model, const Tokenizer& tokenizer,
                      bool loopback) {
  if (model.vocab_size > tokenizer.vocab_size()) {
    log.Line(LogLevel::kWarning, "warning",
             {{"what", "the model has " + std::to_string(model.vocab_size) + " token ids but the tokenizer has " +
                           std::to_string(tokenizer.vocab_size()) + "; ids above that have no text"}});
  }
  const std::string skipped = WarningOfSkipped(model);
  if (options.log_json && !skipped.empty()) log.Line(LogLevel::kWarning, "warning", {{"what", skipped}});
  if (options.api_keys.empty() && !loopback) {
    log.Line(LogLevel::kWarning, "warning",
             {{"what", "no API key is set and other machines can reach " + options.host +
                           ", so anyone who can reach it may use it; set keys with --api-key-file"}});
  }
  if (!options.api_keys.empty() && !loopback && options.tls_cert.empty()) {
    log.Line(LogLevel::kWarning, "warning",
             {{"what", "API keys and texts cross the network unencrypted; use --tls-cert, or a proxy with TLS"}});
  }
  if (options.kv_events_port >= 0) {
    log.Line(LogLevel::kWarning, "warning",
             {{"what",
               "every client that reaches the port of --kv-events reads the token ids of all prompts and "
               "replies, without a key and unencrypted; let only the router reach it"}});
  }
  if (options.wide_steps) {
    const std::string most = std::to_string(kMaxDecodeRows);
    log.Line(
        "note",
        {{"what", "steps with more than " + most +
                      " sequences use other kernels, so the last bits of probabilities depend on the number of running "
                      "sequences; --max-concurrent " +
                      most + " avoids that"}});
  }
}

}  // namespace

void Announce(const Log& log, const ServerOptions& options, const ModelInfo& model, const Tokenizer& tokenizer,
              const HttpServer& http) {
  log.Line("model", {{"name", options.model_name},
                     {"folder", options.model_dir},
                     {"weights", LogBytes{model.weight_bytes}},
                     {"context", model.max_context},
                     {"encoder", std::string(ChatDialectName(options.dialect))},
                     {"thinking", std::string(options.default_thinking ? "on" : "off")}});
  AnnounceWarnings(log, options, model, tokenizer, http.is_loopback());
  AnnounceMemory(log, options, model);
  log.Line("limits", {{"concurrent", options.max_running},
                      {"queue", options.max_waiting},
                      {"prefill_chunk", options.prefill_chunk},
                      {"max_gap_ms", static_cast<int64_t>(options.max_gap_s * 1000)},
                      {"target_ttft_ms", static_cast<int64_t>(options.target_ttft_s * 1000)},
                      {"api_keys", static_cast<int64_t>(options.api_keys.size())}});
  if (http.metrics_port() >= 0)
    log.Line("metrics", {{"url", ServerUrl("http", options.host, http.metrics_port()) + "/metrics"}});
  log.Line("listening", {{"url", ServerUrl(options.tls_cert.empty() ? "http" : "https", options.host, http.port())}});
}

}  // namespace dsv4::server

namespace dsv4 {

void LogPlan(const MemoryPlan& plan) {
  using server::LogBytes;
  const server::Log log(/*json=*/true);
  const auto per_1k = static_cast<int64_t>(plan.kv_bytes_per_1k_tokens);
  log.Line("plan", {{"device", plan.device},
                    {"weights", LogBytes{plan.weight_bytes + plan.widened_bytes}},
                    {"activations", LogBytes{plan.activation_bytes}},
                    {"scratch", LogBytes{plan.scratch_bytes}},
                    {"kv_per_sequence", LogBytes{plan.kv_fixed_bytes}},
                    {"kv_per_1k_tokens", LogBytes{per_1k}},
                    {"free", LogBytes{plan.available_bytes}},
                    {"context", plan.max_context},
                    {"context_that_fits", plan.max_context_that_fits},
                    {"host_experts", LogBytes{plan.host_expert_bytes}},
                    {"disk", LogBytes{plan.disk_bytes}}});
}

Status CheckKvBudget(int64_t budget_bytes, const ModelInfo& model) {
  const int64_t least = model.kv_fixed_bytes +
                        static_cast<int64_t>(static_cast<double>(server::kKvPageTokens) * model.kv_bytes_per_token);
  if (budget_bytes >= least) return {};
  return InvalidArgument("--kv-budget is " + std::to_string(budget_bytes) +
                         " bytes, too small for one sequence; give at least " + std::to_string(least) +
                         " bytes: a sequence with its first " + std::to_string(server::kKvPageTokens) +
                         " tokens, more for each sequence that runs at the same time");
}

}  // namespace dsv4
