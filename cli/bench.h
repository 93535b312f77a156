// Shared code of the sub-commands of dsv4 bench.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "clock.h"
#include "dsv4/engine.h"
#include "dsv4/measure.h"
#include "options.h"

namespace dsv4::cli {

using Json = nlohmann::ordered_json;

// Returns `n` ids from the whole vocabulary without the ids 0 and 1 (BOS, EOS). The same arguments give the same ids.
std::vector<TokenId> SomeTokens(int64_t n, uint64_t seed, int64_t vocab);

// Peak rates of the machine.
struct Rates {
  double read = 0;  // bytes per second
  double fma = 0;   // multiply-adds per second; 0: not measured (GPU)
};
class RateMeter {
 public:
  // Returns rates that are at most kGoodFor old, because other programs use a varying share of the memory's rate.
  Rates Now(Engine& engine);

 private:
  static constexpr double kGoodFor = 4;  // seconds
  bool measured_ = false;
  Clock::time_point when_;
  Rates rates_;
};

// Prints `row` with --json, otherwise `line`.
void Report(const BenchOptions& options, const Json& row, const std::string& line);

// Prints the ops of a trace of `steps` steps, which took `seconds`. With --json each row begins with the fields of
// `of`.
void ReportOps(const BenchOptions& options, const std::vector<OpTime>& times, int64_t steps, double seconds,
               const Rates& rates, const Json& of);

// Measures linears in every weight format.
void BenchLinears(const BenchOptions& options, Engine& engine, RateMeter& meter);

// Measures the phases from the start of the process to the second token. The first token comes from the logits of the
// prompt. The second comes from a decode step, whose CUDA graph is captured then.
int BenchStart(const BenchOptions& options, const EngineOptions& model);

// Compares the last rows of logits of prompts, computed in each of a GPU's ways, with rows from float32 inputs.
int BenchErrors(const BenchOptions& options, const EngineOptions& model);

// Measures decode with the drafts of options.rows and options.acceptance. A run has `tokens` tokens, per sequence if
// options.tokens is set, otherwise of all sequences together.
void BenchDrafts(const BenchOptions& options, Engine& engine, std::span<const int64_t> batches, int64_t context,
                 int64_t tokens);

}  // namespace dsv4::cli
