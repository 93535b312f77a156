// Whether a step has drafts, and how much of them it verifies. It may use clocks: nothing that it decides changes what
// is emitted.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/drafts/drafter.h"

namespace dsv4 {

// What steps of so many rows take.
class StepTimes {
 public:
  void Add(int64_t rows, double seconds);
  double Expect(int64_t rows) const;  // from those that were; 0: none was
  int64_t widest() const { return seconds_.empty() ? 0 : seconds_.rbegin()->first; }

 private:
  std::map<int64_t, double> seconds_;
};

// What is left to make of drafts that are cut: nothing; each token by itself; all at once, after which they are cut
// once more.
enum class Making : uint8_t { kDone, kEach, kAtOnce };

class DraftPolicy {
 public:
  // After this many refusals one draft token is verified anyway, to see whether drafting pays again.
  static constexpr int64_t kTryAgain = 32;
  // What a trial of drafts may lose before it ends, in steps without drafts, and the most that it may lose again of
  // what it has won: enough for a drafter that is worth while to outlive its bad luck.
  static constexpr double kStake = 0.9, kMostCredit = 12;
  // Steps without drafts until some are tried again where they did not pay; twice as many each time.
  static constexpr int64_t kFirstWait = 192, kLongestWait = 768;

  // `threshold` as DraftOptions::threshold.
  explicit DraftPolicy(float threshold) : threshold_(threshold) {}

  // Goes on from the times that another has seen.
  void TakeTimes(const DraftPolicy& from) {
    plain_ = from.plain_, drafted_ = from.drafted_, making_seconds_ = from.making_seconds_;
  }

  // Whether a threshold, which is held against what is known of drafts that are made, cuts some.
  bool has_threshold() const { return threshold_ > 0; }

  // What making drafts of so many tokens took, and what it would take; 0: unknown.
  void AddDrafting(Making making, int64_t tokens, double seconds);
  double Drafting(Making making, int64_t tokens) const {
    return static_cast<double>(Makings(making, tokens)) * making_seconds_;
  }

  // What a step of `sequences` with so many rows took; rows == sequences: it had no drafts.
  void AddStep(int64_t rows, int64_t sequences, double seconds);
  // What one would take; 0: unknown.
  double Expect(int64_t rows, int64_t sequences) const;

  // Whether drafts for a step of `sequences` should be made at all: while they have not lost what they may, else at
  // long intervals for as long as that takes again.
  bool Wants(int64_t sequences);
  // Whether drafts have lost, and are not yet due again.
  bool Rests(int64_t sequences) const;
  // What making drafts and verifying them, which Cut has cut, gave: tokens and seconds beside those of a step without.
  void AddGain(int64_t sequences, int64_t tokens, double seconds);

  // Cuts the drafts of a step in which every sequence has a row besides, `max_rows` in all: to those tokens that make
  // the most of the expected number of tokens a second. With a threshold each draft on its own. Drafts that are not
  // made yet have confidences only, and making them takes its time, too.
  void Cut(std::span<Draft> drafts, int64_t max_rows, Making making = Making::kDone);
  // How many tokens of a draft of Cut's were accepted. `foreseen`: its confidences are what was foreseen, however it
  // was made since.
  void Observe(const Draft& draft, int64_t accepted, bool foreseen);

 private:
  // Drafts in batches of about a size: a trial, which goes on while it has credit.
  struct Trial {
    double credit = kStake;  // with what it has won since, in steps without drafts
    bool begun = false;      // one draft has been verified
    int64_t idle = 0;        // steps without drafts since it ended
    int64_t wait = kFirstWait;
    bool Pays() const { return credit > 0; }
  };
  // Of a place in drafts: what confidences said, and what was accepted. Begins as if some had been seen.
  struct Place {
    double hoped = 8, accepted = 8;
  };
  using Places = std::array<Place, kMaxDraftTokens>;

  static size_t SizeOf(int64_t sequences);
  Trial& TrialOf(int64_t sequences) { return trials_[SizeOf(sequences)]; }
  // A token of a draft that may be verified.
  struct Candidate {
    float survival;  // probability that it and those in front of it are right
    size_t draft;
    int64_t place;
  };
  static int64_t Makings(Making making, int64_t tokens) {
    return making == Making::kDone ? 0 : making == Making::kAtOnce ? std::min<int64_t>(tokens, 1) : tokens;
  }
  void CutByTimes(std::span<Draft> drafts, int64_t room, Making making);
  std::vector<Candidate> CandidatesOf(std::span<const Draft> drafts, const Places& places) const;
  // The number of candidates, likeliest first, that is worth most.
  int64_t Best(std::span<const Candidate> candidates, int64_t sequences, Making making) const;
  // Whether a token is to be verified where `best` are worth while.
  bool Tries(int64_t sequences, int64_t best);

  float threshold_;
  StepTimes plain_, drafted_;
  double making_seconds_ = 0;    // of what is made at a time: a token of every draft, or all of them
  std::array<Trial, 8> trials_;  // by the logarithm of the number of sequences
  Places foreseen_, made_;       // by what said how sure drafts are
  int64_t refused_ = 0;
  double expected_ = 0;  // tokens of the drafts that were cut last, until their gain is added
};

}  // namespace dsv4
