// What each command was asked to do: filled in by command_line.cc from the flags, used by one file per command.
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

// -m and the flags of the engine; model_dir is empty where -m was not given.
using ModelOptions = EngineOptions;

// Whether --device names the CPU: one rank of it, or several (cpu*2).
inline bool IsCpu(const std::string& device) { return device == "cpu" || device.starts_with("cpu*"); }

// What ends a reply, besides its length and the model's own EOS.
struct StopOptions {
  std::vector<std::string> texts;  // not printed
  std::vector<TokenId> ids;        // not printed; they hold with --ignore-eos, too
};

struct GenerateOptions {
  ModelOptions model;
  SamplingParams sampling;
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
  std::string system;
  std::string tools_file;
  std::optional<ChatDialect> dialect;
  bool thinking = true;
  bool keep_history = true;  // of what was typed, for the next chat
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
  int64_t window = 0;  // 0: 2048, or the model's context where that is less
  bool no_bos = false;
  bool json = false;
};

struct TokenizeOptions {
  std::string model_dir;
  bool plain = false;         // tokenize: spellings of added tokens are ordinary text
  bool skip_special = false;  // detokenize
  bool jsonl = false;
};

struct ChatEncodeOptions {
  std::string model_dir;
  std::optional<ChatDialect> dialect;
  bool ids = false;
  SpecialTokensInContent in_content = SpecialTokensInContent::kOfficial;
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
  ModelOptions model;
  SamplingParams sampling;
  std::optional<std::vector<int64_t>> prompts, contexts, batches;  // none: what suits the device (BenchPlan)
  int64_t tokens = 0;                                              // of a decode run; 0: what suits the device
  int64_t repeat = 5;                                              // runs that count; one more warms up
  int64_t budget_s = 0;                             // for one figure; 0: what suits the device, where it has a limit
  std::optional<bool> ops;                          // the time of each op behind every figure; none: on the CPU
  bool linears = false;                             // instead: linears of the model's shapes in every weight format
  std::vector<std::pair<int64_t, int64_t>> shapes;  // rows and columns of those linears; none: the model's
  bool errors = false;       // instead: how far prompts of these lengths are from float32 inputs (GPU)
  bool first_token = false;  // the time to the first token by phases instead
  // drafts instead: rows of one sequence in a step that verifies, and shares of tokens that are right, in percent
  std::optional<std::vector<int64_t>> draft_rows, draft_right;
  int64_t draft_repeats = 0;  // of wrong tokens, in percent: like the one in front
  std::string count_experts_file;
  std::string disk;           // write the synthetic weights into this folder instead of measuring
  std::string disk_overflow;  // and into this one what its disk has no room for
  bool json = false;
};

struct ServeOptions {
  enum class Goal { kLatency, kBalanced, kThroughput };

  ModelOptions model;
  ServerOptions server;
  Goal goal = Goal::kBalanced;  // what follows where the flag is not given
  std::optional<int64_t> max_gap_ms, max_concurrent;
  std::optional<ChatDialect> dialect;
  std::string api_key_file;
  std::string count_experts_file;
  int64_t max_body = int64_t{32} << 20;
  int64_t max_body_total = 0;  // 0: 256 MiB, or one body where that is more
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

// Each returns the exit status, or throws what errors.h names.
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
int RunServe(const ServeOptions& options);

}  // namespace dsv4::cli
