// How much of the drafts a step verifies. It may use clocks: nothing that it decides changes what is emitted.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "engine/drafter.h"

namespace dsv4 {

class DraftPolicy {
 public:
  // of what is not worth while, so many times not, one token of one draft once
  static constexpr int64_t kTryAgain = 32;

  // `threshold` as EngineOptions::draft_threshold.
  explicit DraftPolicy(float threshold) : threshold_(threshold) {}

  // What a step of so many rows took.
  void AddStep(int64_t rows, double seconds);
  // What one would take, from those that were; 0: none was.
  double Expect(int64_t rows) const;

  // Cuts the drafts of a step in which every sequence has a row besides, `max_rows` in all: to those tokens that make
  // the most of the expected number of tokens a second. With a threshold each draft on its own.
  void Cut(std::span<Draft> drafts, int64_t max_rows);

 private:
  void CutByTimes(std::span<Draft> drafts, int64_t room);
  // The number of candidates, likeliest first, that is worth most; `survivals` falls.
  int64_t Best(std::span<const float> survivals, int64_t sequences) const;

  const float threshold_;
  std::map<int64_t, double> seconds_;  // by rows
  int64_t refused_ = 0;
};

}  // namespace dsv4
