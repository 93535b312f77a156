// Whether a step has drafts, and how much of them it verifies. It may use clocks: nothing that it decides changes what
// is emitted.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>

#include "engine/drafter.h"

namespace dsv4 {

// What steps of so many rows take.
class StepTimes {
 public:
  void Add(int64_t rows, double seconds);
  double Expect(int64_t rows) const;  // from those that were; 0: none was

 private:
  std::map<int64_t, double> seconds_;
};

class DraftPolicy {
 public:
  // of what is not worth while, so many times not, one token of one draft once
  static constexpr int64_t kTryAgain = 32;
  // Steps without drafts until some are tried again where they did not pay; twice as many each time.
  static constexpr int64_t kFirstWait = 192, kLongestWait = 1024;

  // `threshold` as EngineOptions::draft_threshold.
  explicit DraftPolicy(float threshold) : threshold_(threshold) {}

  // What a step of `sequences` with so many rows took; rows == sequences: it had no drafts.
  void AddStep(int64_t rows, int64_t sequences, double seconds);
  // What one would take; 0: unknown.
  double Expect(int64_t rows, int64_t sequences) const;

  // Whether drafts for a step of `sequences` should be made at all: while those of before made more tokens than steps
  // without would have in the time, else for a few steps at long intervals.
  bool Wants(int64_t sequences);
  // What making drafts and verifying them gave: tokens and seconds beside those of a step without.
  void AddGain(int64_t sequences, int64_t tokens, double seconds);

  // Cuts the drafts of a step in which every sequence has a row besides, `max_rows` in all: to those tokens that make
  // the most of the expected number of tokens a second. With a threshold each draft on its own.
  void Cut(std::span<Draft> drafts, int64_t max_rows);
  // How many tokens of a draft of Cut's were accepted.
  void Observe(const Draft& draft, int64_t accepted);

 private:
  // Drafts in batches of about a size: a trial, which goes on while they pay.
  struct Trial {
    double gain = 0;      // running, in steps without drafts
    int64_t seen = 0;     // gains
    int64_t least = 3;    // of them, before it can end
    int64_t idle = 0;     // steps without drafts since it ended
    int64_t wait = kFirstWait;
    bool Pays() const;
  };
  // Of a place in drafts: what confidences said, and what was accepted.
  struct Place {
    double hoped = 4, accepted = 4;
  };

  Trial& TrialOf(int64_t sequences);
  void CutByTimes(std::span<Draft> drafts, int64_t room);
  // The number of candidates, likeliest first, that is worth most; `survivals` falls.
  int64_t Best(std::span<const float> survivals, int64_t sequences) const;

  float threshold_;
  StepTimes plain_, drafted_;
  std::array<Trial, 8> trials_;  // by the logarithm of the number of sequences
  std::array<Place, kMaxDraftTokens> places_;
  int64_t refused_ = 0;
};

}  // namespace dsv4
