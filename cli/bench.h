// What the parts of dsv4 bench share.
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

// Ids spread over the vocabulary, never the end token; the same in every run.
std::vector<TokenId> SomeTokens(int64_t n, uint64_t seed, int64_t vocab);

// What the machine reads and multiplies at most; fma 0: not measured (GPU).
struct Rates {
  double read = 0;  // bytes a second
  double fma = 0;   // multiply-adds a second
};
class RateMeter {
 public:
  Rates Now(Engine& engine);  // at most some seconds old: other programs take their share of the memory's rate

 private:
  static constexpr double kGoodFor = 4;  // seconds
  bool measured_ = false;
  Clock::time_point when_;
  Rates rates_;
};

// Prints a row as JSON, or as a line for people.
void Report(const BenchOptions& options, const Json& row, const std::string& line);

// Rows of a trace: `work` ran `steps` steps in `seconds`. `of` describes the figure: it goes before each row's own
// fields.
void ReportOps(const BenchOptions& options, const std::vector<OpTime>& times, int64_t steps, double seconds,
               const Rates& rates, const Json& of);

// Linears of the model's shapes in every weight format.
void BenchLinears(const BenchOptions& options, Engine& engine, RateMeter& meter, const std::vector<int64_t>& tokens,
                  double budget_s);

// From the start of the process to the second token: the first comes from the prompt's logits, the second from a
// recorded decode step, which is recorded then.
int BenchFirstToken(const BenchOptions& options, const EngineOptions& model);

// The last rows of prompts, computed in each of the ways that a GPU has for them, against float32 inputs.
int BenchErrors(const BenchOptions& options, const EngineOptions& model);

// What the drafts of options.draft_rows and draft_right cost and give, in decode runs of `tokens`: of a sequence where
// the options say so, else of a batch.
void BenchDrafts(const BenchOptions& options, Engine& engine, std::span<const int64_t> batches, int64_t context,
                 int64_t tokens);

int BenchWriteCheckpoint(const BenchOptions& options);

}  // namespace dsv4::cli
