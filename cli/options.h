// Options of each command. The flags (command_line.cc, bench_flags.cc) fill them; one file per command uses them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "dsv4/server.h"

namespace dsv4::cli {

// -m and the flags of the engine; model_dir is empty without -m.
using ModelOptions = EngineOptions;

// Returns true if --device names the CPU, with one rank or several (cpu*2).
inline bool IsCpu(const std::string& device) { return device == "cpu" || device.starts_with("cpu*"); }

// Stops of a reply, in addition to its length and the model's EOS. They are not printed.
struct StopOptions {
  std::vector<std::string> texts;
  std::vector<TokenId> ids;  // also with --ignore-eos
};

// Which sampling flags were given. The others have the values of the model's generation_config.json.
struct GivenSampling {
  bool temperature = false, top_k = false, top_p = false, min_p = false, repeat_penalty = false;
};

struct GenerateOptions {
  ModelOptions model;
  SamplingParams sampling;
  GivenSampling given_sampling;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::string token_ids_file;
  int64_t max_tokens = 256;  // -1: until EOS or the end of the context
  StopOptions stops;
  std::string output_ids_file;
  std::string draft_log_file;
  std::string count_experts_file;
  bool ignore_eos = false;
  bool no_bos = false;
  bool json = false;
};

struct ChatOptions {
  ModelOptions model;
  SamplingParams sampling;
  GivenSampling given_sampling;
  std::string system;
  std::string tools_file;
  std::optional<ChatDialect> dialect;
  bool thinking = true;
  bool keep_history = true;  // keep the typed lines for the next chat
  ReasoningEffort effort = ReasoningEffort::kDefault;
  int64_t max_tokens = -1;
  StopOptions stops;
};

struct LogitsOptions {
  ModelOptions model;
  std::string token_ids_file;
  std::string output_file;
  std::optional<int64_t> decode_from;
  bool json = false;
};

struct PerplexityOptions {
  ModelOptions model;
  std::string text_file;
  std::string token_ids_file;
  int64_t window = 0;  // 0: 2048, at most the model's context
  bool no_bos = false;
  bool json = false;
};

struct TokenizeOptions {
  std::string model_dir;
  bool plain = false;         // tokenize: the text of added tokens stays ordinary text
  bool skip_special = false;  // detokenize
  bool jsonl = false;
};

struct ChatEncodeOptions {
  std::string model_dir;
  std::optional<ChatDialect> dialect;
  bool ids = false;
  SpecialTokensInContent in_content = SpecialTokensInContent::kOfficial;
  bool as_served = false;
  bool jsonl = false;
};

struct ParseOptions {
  bool thinking = false;
  bool jsonl = false;
};

struct InspectOptions {
  ModelOptions model;
  bool plan = false;
  bool json = false;
};

struct BenchOptions {
  // The sub-commands. kSteps: `dsv4 bench` itself, decode and prefill.
  enum class Mode { kSteps, kOps, kBatches, kLinears, kDrafts, kStart, kErrors };

  ModelOptions model;
  SamplingParams sampling;
  Mode mode = Mode::kSteps;
  std::optional<std::vector<int64_t>> prompts, contexts, batches;  // not set: the defaults of MakePlan
  std::optional<std::vector<int64_t>> linear_tokens;               // kLinears; not set: 1, 512, 2048
  int64_t tokens = 0;                                              // of a decode run; 0: the default of MakePlan
  int64_t repeat = 5;                                              // measured runs, after a warm-up run
  int64_t budget_s = 0;                                            // seconds per figure; 0: the default of MakePlan
  std::optional<bool> ops;                                         // kSteps: time of each op; not set: on the CPU
  std::vector<std::pair<int64_t, int64_t>> shapes;       // kLinears: rows and columns; empty: the model's shapes
  std::optional<std::vector<int64_t>> rows, acceptance;  // kDrafts: rows of a sequence in a step; percentages
  int64_t repeats = 0;         // kDrafts: percentage of wrong draft tokens that repeat the previous token
  int64_t start_prompt = 512;  // kStart: tokens
  std::string count_experts_file;
  bool json = false;
};

struct SynthesizeOptions {
  ModelOptions model;
  std::string dir;
  std::string overflow;  // folder for shards that do not fit on the disk of `dir`; "": none
  bool json = false;
};

struct ServeOptions {
  enum class Goal { kLatency, kBalanced, kThroughput };

  ModelOptions model;
  ServerOptions server;
  Goal goal = Goal::kBalanced;
  std::optional<int64_t> max_gap_ms, max_concurrent;  // not set: from `goal`
  std::optional<ChatDialect> dialect;
  std::string api_key_file;
  std::string count_experts_file;
  int64_t max_body = int64_t{32} << 20;
  int64_t max_body_total = 0;  // 0: 256 MiB, but at least max_body
  int64_t min_rate = int64_t{4} << 10;
  int64_t header_timeout_s = 30;
  int64_t body_timeout_s = 30;
  int64_t write_timeout_s = 60;
  int64_t key_guesses = 5;
  int64_t request_timeout_s = 3600;
  int64_t drain_timeout_s = 30;
  int64_t stall_timeout_s = 120;
  int64_t ping_s = 10;
  int64_t log_interval_s = 10;
};

// Each returns the exit status, or throws an exception of errors.h.
int RunGenerate(const GenerateOptions& options);
int RunChat(const ChatOptions& options);
int RunLogits(const LogitsOptions& options);
int RunPerplexity(const PerplexityOptions& options);
int RunTokenize(const TokenizeOptions& options);
int RunDetokenize(const TokenizeOptions& options);
int RunEncode(const ChatEncodeOptions& options);
int RunParse(const ParseOptions& options);
int RunInspect(const InspectOptions& options);
int RunBench(const BenchOptions& options);
int RunSynthesize(const SynthesizeOptions& options);
int RunServe(const ServeOptions& options);

}  // namespace dsv4::cli
