// How long a step takes: seconds = base + per_sequence * sequences that generate + per_prompt_token * prompt tokens,
// fitted to the latest steps. From it come the prompt tokens that a step may take, and the sequences that may run,
// within a bound.
#pragma once

#include <array>
#include <cstdint>

namespace dsv4::server {

class StepTimes {
 public:
  void Add(int64_t generating, int64_t prompt_tokens, double seconds);

  // What nearly every step of this kind stays below: the fit, and twice the deviation from it.
  double Expect(int64_t generating, int64_t prompt_tokens) const;

  // The most prompt tokens beside so many sequences within `bound`; `limit` at most. Few where prompts were never
  // timed.
  int64_t PromptTokens(int64_t generating, double bound, int64_t limit) const;

  // The most sequences whose steps without prompts stay within `bound`; `limit` at most. `limit` also where one alone
  // does not.
  int64_t Sequences(double bound, int64_t limit) const;

 private:
  static constexpr int kTerms = 3;
  double Fit(int64_t generating, int64_t prompt_tokens) const;
  void Solve();

  std::array<std::array<double, kTerms>, kTerms> products_{};  // weighted sums over the steps
  std::array<double, kTerms> targets_{};
  std::array<double, kTerms> cost_{};
  double num_prompts_ = 0, deviation_ = 0;  // the latter relative to the fit, squared
};

}  // namespace dsv4::server
