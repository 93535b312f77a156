// dsv4 serve: loads a model and runs the HTTP server.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "dsv4/inspect.h"
#include "dsv4/server.h"
#include "dsv4/service_manager.h"
#include "dsv4/tokenizer.h"
#include "errors.h"
#include "flags.h"
#include "io.h"
#include "model.h"
#include "options.h"
#include "progress.h"

namespace dsv4::cli {

namespace {

// A key file with this line alone requires no keys, such as the default of deploy/dsv4.service.
constexpr std::string_view kNoKeys = "# no keys";

bool IsOfThisMachine(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

// Each line of the file has a key, or a label for the log and a key. Skips empty lines, lines that start with #, and a
// byte order mark.
void AddKeysFromFile(const std::string& path, ServerOptions* server) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string text = ReadInput(path);
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (text == kNoKeys || text == std::string(kNoKeys) + "\n") {
    if (IsOfThisMachine(server->host)) return;
    throw RunError(path + " sets no keys, and --host " + server->host +
                   " accepts other machines: write one key per line to the file");
  }
  std::istringstream lines(text);
  const size_t before = server->api_keys.size();
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const std::string words = line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
    const size_t blank = words.find_last_of(" \t");
    const size_t label_end = blank == std::string::npos ? 0 : words.find_last_not_of(" \t", blank) + 1;
    const std::string label = words.substr(0, label_end), key = words.substr(blank + 1);
    if (!IsUsableKey(key) || (!label.empty() && !IsUsableKey(label))) {
      throw RunError(path + ", line " + std::to_string(number) +
                     ": expected a key, or a label and a key, in visible ASCII");
    }
    server->key_labels.resize(server->api_keys.size());
    server->api_keys.push_back(key);
    server->key_labels.push_back(label);
  }
  if (server->api_keys.size() == before) throw RunError(path + " contains no API key; write one key per line");
}

// --goal sets how long streams may wait for prompts, and how many sequences a step may have.
void SetLoad(const ServeOptions& options, ServerOptions* server) {
  using Goal = ServeOptions::Goal;
  const bool latency = options.goal == Goal::kLatency, throughput = options.goal == Goal::kThroughput;
  server->max_gap_s = static_cast<double>(options.max_gap_ms.value_or(latency ? 60 : throughput ? 0 : 250)) / 1000;
  server->max_running = options.max_concurrent.value_or(latency ? 16 : throughput ? kMaxDecodeRows : 64);
  server->gather_s = throughput ? 0.002 : 0;
}

void SetLimits(const ServeOptions& options, ServerOptions* server) {
  const int64_t body_total = options.max_body_total > 0 ? options.max_body_total
                                                        : std::max(int64_t{256} << 20, options.max_body);
  server->max_body_bytes = static_cast<size_t>(options.max_body);
  server->max_body_total = static_cast<size_t>(body_total);
  server->min_rate = static_cast<size_t>(options.min_rate);
  server->header_timeout_s = static_cast<double>(options.header_timeout_s);
  server->body_timeout_s = static_cast<double>(options.body_timeout_s);
  server->write_timeout_s = static_cast<double>(options.write_timeout_s);
  server->key_guesses = static_cast<double>(options.key_guesses);
  server->request_timeout_s = static_cast<double>(options.request_timeout_s);
  server->drain_timeout_s = static_cast<double>(options.drain_timeout_s);
  server->stall_timeout_s = static_cast<double>(options.stall_timeout_s);
  server->ping_s = static_cast<double>(options.ping_s);
  server->log_interval_s = static_cast<double>(options.log_interval_s);
}

// Checks --kv-budget before the weights are loaded, which may take minutes. If --kv-room is not set, experts leave each
// rank's share of the budget free.
void CheckAgainstModel(int64_t kv_budget, EngineOptions* model) {
  if (kv_budget == 0) return;
  const ModelDescription d = Must(Inspect(*model));
  Must(CheckKvBudget(kv_budget, d.info));
  const int64_t ranks = int64_t{d.plan.ranks} * d.plan.devices;
  if (model->offload.kv_room == 0) model->offload.kv_room = (kv_budget + ranks - 1) / ranks;
}

}  // namespace

int RunServe(const ServeOptions& options) {
  ::umask(S_IRWXG | S_IRWXO);  // the server's files contain the text of its users
  ServerOptions server = options.server;
  EngineOptions model = options.model;
  model.model_dir = FindModelDir(model.model_dir);
  if (!options.api_key_file.empty()) AddKeysFromFile(options.api_key_file, &server);
  const CountedExperts counted(options.count_experts_file, model.offload);
  server.count_experts_file = counted.path();
  server.counted_experts = counted.kept();
  SetLoad(options, &server);
  SetLimits(options, &server);
  // Synthetic weights have no tokenizer. The tokenizer of the model folder decodes their text.
  const auto tokenizer = Must(Tokenizer::Load(model.model_dir));
  server.model_dir = model.model_dir;
  server.dialect = options.dialect ? *options.dialect : DetectDialect(model.model_dir);
  const bool synthetic = !model.synthetic.shape.empty();
  if (server.model_name.empty()) {
    server.model_name = synthetic ? "synthetic-" + model.synthetic.shape
                                  : std::filesystem::weakly_canonical(model.model_dir).filename().string();
  }
  // The engine's own default (EngineOptions::prefill_chunk).
  server.prefill_chunk = model.prefill_chunk > 0 ? model.prefill_chunk : IsCpu(model.device) ? 512 : 4096;

  model.max_decode_rows = std::max(model.max_decode_rows, server.max_running);
  server.wide_steps = (model.device != "cpu" || model.ranks.invariant) && !model.batch_invariant &&
                      server.max_running > kMaxDecodeRows;
  if (synthetic) model.model_dir.clear();
  CheckAgainstModel(server.kv_budget_bytes, &model);
  Must(CheckServing(server));
  auto manager = ServiceManager::FromEnvironment();  // Serve reports errors
  if (manager.ok() && manager->has_value()) {
    model.progress = [&service = **manager](const Progress& p) {
      service.Loading(p.done, p.total);
      return true;
    };
  }
  ProgressLine progress;
  model.on_plan = [&](const MemoryPlan& plan) {
    server.num_ranks = plan.ranks * plan.devices;
    if (server.log_json) LogPlan(plan);
  };
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress,
                                                    server.log_json ? TellPlan::kNever : TellPlan::kAlways);
  if (server.kv_budget_bytes == 0) server.kv_budget_bytes = DefaultKvBudget(*engine);
  server.interrupted = Interrupted;
  Must(Serve(*engine, *tokenizer, server));
  return kExitDone;
}

}  // namespace dsv4::cli
