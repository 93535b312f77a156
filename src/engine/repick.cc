#include "engine/repick.h"

namespace dsv4 {

int64_t Repicker::Repick(Ranks& ranks) {
  next_ = std::chrono::steady_clock::now() + kEvery;
  Runner& leader = ranks.leader();
  const Result<ExpertUse> use = leader.model().UseOfExperts(leader.device());
  if (!use.ok() || !use->counted || use->on_host == 0) return 0;
  const std::vector<uint64_t>& counts = use->counts.chosen;
  seen_.resize(counts.size());
  lately_.resize(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    lately_[i] = lately_[i] / 2 + static_cast<double>(counts[i] - seen_[i]);
    seen_[i] = counts[i];
  }
  const std::vector<ExpertSwap> swaps = leader.model().BetterPlaces(lately_, kMostSwaps);
  int64_t made = 0;
  for (int rank = ranks.count() - 1; rank >= 0 && !swaps.empty(); --rank) {
    Runner& runner = ranks.runner(rank);
    made = runner.model().SwapExperts(runner.device(), swaps);
  }
  return made;
}

}  // namespace dsv4
