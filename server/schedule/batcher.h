// Decides which prompts take part in a step, and with how many tokens. Pure logic: it knows neither engine nor clock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "server/schedule/step_times.h"

namespace dsv4::server {

inline constexpr int64_t kMinPromptBudget = 16;  // tokens of a step: prompts never stand still

// A prompt that is still being read.
struct PromptState {
  int64_t unread = 0;                    // tokens
  int64_t most = 0;                      // tokens that one step may read: up to a snapshot, or up to the prompt's end
  int64_t to_end = 0;                    // tokens after which the prompt is read; 0: it is
  std::optional<PromptRegime> regime{};  // none: the engine computes its tokens as decode rows
  bool all_rows = false;                 // it needs the logits of all of its tokens
};

struct StepLimits {
  int64_t rows = 0;      // sequences that generate
  int64_t tokens = 0;    // of all prompts
  int64_t all_rows = 0;  // tokens whose logits are needed
  double seconds = 0;    // for the passes; 0: no bound
};

struct PromptPlan {
  std::vector<int64_t> takes;  // tokens of each prompt, in order
  int64_t budget = 0;          // tokens that the step had room for
};

// Returns the tokens of each prompt. The first prompt gets all that it can use, the next ones what is left. A later
// prompt joins with its whole rest, or with enough tokens to be worth a place in the pass, because each further
// sequence of a pass takes time. At most kMinPromptBudget tokens may exceed `limits.seconds`.
PromptPlan PlanPrompts(std::span<const PromptState> prompts, const StepLimits& limits, const StepTimes& times);

// Returns how a prompt computes `computed` tokens in all its steps (StepItem::prompt_tokens).
std::optional<PromptRegime> RegimeOf(int64_t computed);

// Returns the rank of a prompt, smallest first: short prompts pass long ones, but waiting counts.
double PromptRank(int64_t unread, double waited_s);

// Returns the bound of a step: `bound` while first tokens come in time, more while a prompt has waited longer than half
// of `target_ttft`. 0: no bound, no target.
double StepBound(double bound, double target_ttft, double longest_wait);

}  // namespace dsv4::server
