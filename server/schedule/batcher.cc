#include "server/schedule/batcher.h"

#include <algorithm>
#include <cstddef>

#include "dsv4/engine.h"

namespace dsv4::server {

namespace {

constexpr int64_t kShortPrompt = 1024;  // tokens of a prompt: kMediumPrompt of engine/setup/regimes.h
constexpr size_t kMaxPrefills = 8;      // prompts of a step that do not end in it
// Tokens with which a prompt joins others, or a part of the step's tokens if that is less: more of them if it is the
// first of its regime, because each regime is a pass of its own.
constexpr int64_t kJoinLong = 512, kJoinShort = 256, kJoinPart = 4, kJoinPartFirst = 2;
constexpr double kTokensPerSecond = 4096;  // unread tokens that a second of waiting is worth
// A bound grows to this multiple, and by at least kLateSeconds, when a prompt has waited for the whole target.
constexpr double kLateBound = 1.6, kLateSeconds = 0.05;

int64_t LeastToJoin(const PromptState& p, const StepShape& step, int64_t budget) {
  if (p.all_rows) return 1;
  const bool first = p.regime && step.of(*p.regime).tokens == 0;
  const int64_t usual = p.regime == PromptRegime::kLong ? kJoinLong : kJoinShort;
  return std::min({p.most, usual, std::max<int64_t>(budget / (first ? kJoinPartFirst : kJoinPart), 1)});
}

// Gives `budget` tokens to the prompts, in order. Returns the step.
StepShape Fill(std::span<const PromptState> prompts, const StepLimits& limits, int64_t budget,
               std::vector<int64_t>* takes) {
  StepShape step{.rows = limits.rows};
  takes->assign(prompts.size(), 0);
  int64_t left = budget, all_rows = limits.all_rows;
  size_t unfinished = 0;
  for (size_t i = 0; i < prompts.size() && (left > 0 || i == 0); ++i) {
    const PromptState& p = prompts[i];
    int64_t take = std::min(p.most, std::max<int64_t>(left, 1));
    if (p.all_rows) take = std::min(take, all_rows);
    if (take <= 0) continue;
    if (take < p.to_end) {
      if (i > 0 && (unfinished >= kMaxPrefills || take < LeastToJoin(p, step, budget))) continue;
      ++unfinished;
    }
    (*takes)[i] = take;
    left = std::max<int64_t>(left - take, 0);
    if (p.all_rows) all_rows -= take;
    step.AddPrompt(p.regime, take);
  }
  return step;
}

}  // namespace

PromptPlan PlanPrompts(std::span<const PromptState> prompts, const StepLimits& limits, const StepTimes& times) {
  PromptPlan plan{.takes = {}, .budget = limits.tokens};
  const auto fits = [&](int64_t budget) {
    const StepShape step = Fill(prompts, limits, budget, &plan.takes);
    return limits.seconds <= 0 || (times.MayTry(step) && times.Fits(step, limits.seconds));
  };
  if (prompts.empty() || fits(limits.tokens)) return plan;
  int64_t low = 0, high = limits.tokens;  // fits(low), not fits(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  plan.budget = std::min(std::max(low, kMinPromptBudget), limits.tokens);
  Fill(prompts, limits, plan.budget, &plan.takes);
  return plan;
}

std::optional<PromptRegime> RegimeOf(int64_t computed) {
  if (computed <= kMaxDecodeRows) return std::nullopt;
  return computed <= kShortPrompt ? PromptRegime::kShort : PromptRegime::kLong;
}

double PromptRank(int64_t unread, double waited_s) { return static_cast<double>(unread) - kTokensPerSecond * waited_s; }

double StepBound(double bound, double target_ttft, double longest_wait) {
  if (bound <= 0 || target_ttft <= 0) return bound;
  const double late = std::clamp(2 * longest_wait / target_ttft - 1, 0.0, 1.0);
  return bound + late * std::max((kLateBound - 1) * bound, kLateSeconds);
}

}  // namespace dsv4::server
