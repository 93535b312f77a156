#include "engine/memory/repick.h"

#include <cmath>
#include <utility>

namespace dsv4 {

void Repicker::Look(Ranks& ranks, Clock::time_point now) {
  if (!on_) return;
  if (state_ == State::kIdle && now >= next_) {
    next_ = now + kEvery;
    ranks.leader().model().AskForCounts(ranks.leader().device());
    state_ = State::kAsked;
  } else if (state_ == State::kAsked) {
    Choose(ranks, now);
  } else if (state_ == State::kMoving) {
    bool done = true;
    for (int rank = 0; rank < ranks.count(); ++rank) {
      Runner& runner = ranks.runner(rank);
      done = runner.model().ContinueSwaps(runner.device()) && done;
    }
    if (done) state_ = State::kIdle;
  }
}

void Repicker::Choose(Ranks& ranks, Clock::time_point now) {
  Runner& leader = ranks.leader();
  const std::vector<uint64_t> counts = leader.model().CountsAskedFor(leader.device());
  if (counts.empty()) return;
  state_ = State::kIdle;
  const std::chrono::duration<double> since = now - std::exchange(last_, now), half_life = kHalfLife;
  const double kept = std::exp2(-since / half_life);
  seen_.resize(counts.size());
  lately_.resize(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    lately_[i] = lately_[i] * kept + static_cast<double>(counts[i] - seen_[i]);
    seen_[i] = counts[i];
  }
  const std::vector<ExpertSwap> swaps = leader.model().BetterPlaces(lately_, kMostSwapsAtOnce);
  for (int rank = 0; rank < ranks.count() && !swaps.empty(); ++rank) {
    if (ranks.runner(rank).model().BeginSwaps(swaps) > 0) state_ = State::kMoving;
  }
}

}  // namespace dsv4
