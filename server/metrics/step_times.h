// Predicts the time of a step: seconds = base + per_sequence * generating sequences + per_prompt_token * prompt tokens,
// fitted to recent steps. From it follow the prompt tokens of a step and the number of sequences that keep within a
// bound.
#pragma once

#include <array>
#include <cstdint>

namespace dsv4::server {

class StepTimes {
 public:
  void Add(int64_t generating, int64_t prompt_tokens, double seconds);

  // Returns a time that nearly every step of this kind stays below: the fit plus twice its relative deviation.
  double Expect(int64_t generating, int64_t prompt_tokens) const;

  // Returns the most prompt tokens that a step with `generating` sequences can take within `bound`, at most `limit`.
  // Few if no prompt was timed yet.
  int64_t PromptTokens(int64_t generating, double bound, int64_t limit) const;

  // Returns the most sequences whose steps without prompts stay within `bound`, at most `limit`. Also returns `limit`
  // if even one sequence does not.
  int64_t Sequences(double bound, int64_t limit) const;

 private:
  static constexpr int kTerms = 3;
  double Fit(int64_t generating, int64_t prompt_tokens) const;
  void Solve();

  std::array<std::array<double, kTerms>, kTerms> products_{};  // weighted sums over the steps
  std::array<double, kTerms> targets_{};
  std::array<double, kTerms> cost_{};
  double num_prompts_ = 0, deviation_ = 0;  // deviation_: relative to the fit, squared
};

}  // namespace dsv4::server
