#include "server/metrics/step_times.h"

#include <algorithm>
#include <cmath>

namespace dsv4::server {

namespace {

constexpr double kForget = 0.97;  // factor on a step's weight for each later step
constexpr double kBlend = 0.05;   // weight of a step's deviation in the average
constexpr double kMaxDeviation = 1.0;
constexpr int64_t kUntimed = 32;  // prompt tokens of a step before any prompt was timed
constexpr int kSweeps = 30;

}  // namespace

void StepTimes::Add(int64_t generating, int64_t prompt_tokens, double seconds) {
  const double fit = Fit(generating, prompt_tokens);
  if (fit > 0) {
    const double off = std::min(std::max(seconds / fit - 1, 0.0),
                                kMaxDeviation);  // a step that is too short does no harm
    deviation_ += kBlend * (off * off - deviation_);
  }
  const std::array<double, kTerms> x = {1, static_cast<double>(generating), static_cast<double>(prompt_tokens)};
  // Weighs relative errors: a long step says no more than a short one.
  const double weight = 1 / std::max(seconds * seconds, 1e-12);
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) products_[i][j] = kForget * products_[i][j] + weight * x[i] * x[j];
    targets_[i] = kForget * targets_[i] + weight * x[i] * seconds;
  }
  if (prompt_tokens > 0) num_prompts_ += 1;
  Solve();
}

// Least squares with non-negative costs: improves one cost at a time, given the others.
void StepTimes::Solve() {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kTerms; ++i) {
      if (products_[i][i] <= 0) continue;
      double rest = targets_[i];
      for (size_t j = 0; j < kTerms; ++j) rest -= j == i ? 0 : products_[i][j] * cost_[j];
      cost_[i] = std::max(rest / products_[i][i], 0.0);
    }
  }
}

double StepTimes::Fit(int64_t generating, int64_t prompt_tokens) const {
  return cost_[0] + cost_[1] * static_cast<double>(generating) + cost_[2] * static_cast<double>(prompt_tokens);
}

double StepTimes::Expect(int64_t generating, int64_t prompt_tokens) const {
  return Fit(generating, prompt_tokens) * (1 + 2 * std::sqrt(deviation_));
}

int64_t StepTimes::PromptTokens(int64_t generating, double bound, int64_t limit) const {
  if (num_prompts_ == 0) return std::min(kUntimed, limit);
  const double spare = bound / (1 + 2 * std::sqrt(deviation_)) - Fit(generating, 0);
  if (spare <= 0) return 0;
  return cost_[2] * static_cast<double>(limit) <= spare ? limit : static_cast<int64_t>(spare / cost_[2]);
}

int64_t StepTimes::Sequences(double bound, int64_t limit) const {
  if (Expect(limit, 0) <= bound || Expect(1, 0) > bound) return limit;
  const double spare = bound / (1 + 2 * std::sqrt(deviation_)) - cost_[0];
  return std::clamp<int64_t>(static_cast<int64_t>(spare / cost_[1]), 1, limit);
}

}  // namespace dsv4::server
