#include "engine/drafts/draft_policy.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

namespace dsv4 {

void StepTimes::Add(int64_t rows, double seconds) {
  constexpr double kNew = 0.2;
  const auto [at, is_first] = seconds_.try_emplace(rows, seconds);
  if (!is_first) at->second += kNew * (seconds - at->second);
}

double StepTimes::Expect(int64_t rows) const {
  if (seconds_.empty()) return 0;
  const auto above = seconds_.lower_bound(rows);
  if (above == seconds_.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == seconds_.end()) {  // nothing as wide has run: optimistic, so that it is tried
    constexpr double kOfARow = 0.1;
    return below->second * (1 + kOfARow * static_cast<double>(rows - below->first) / static_cast<double>(below->first));
  }
  const double part = static_cast<double>(rows - below->first) / static_cast<double>(above->first - below->first);
  return below->second + part * (above->second - below->second);
}

void DraftPolicy::AddDrafting(Making making, int64_t tokens, double seconds) {
  constexpr double kNew = 0.2;
  const double each = seconds / static_cast<double>(std::max<int64_t>(Makings(making, tokens), 1));
  making_seconds_ += (making_seconds_ == 0 ? 1 : kNew) * (each - making_seconds_);
}

void DraftPolicy::AddStep(int64_t rows, int64_t sequences, double seconds) {
  if (rows > sequences) return drafted_.Add(rows, seconds);
  plain_.Add(sequences, seconds);
  ++TrialOf(sequences).idle;
}

double DraftPolicy::Expect(int64_t rows, int64_t sequences) const {
  const double plain = plain_.Expect(sequences), drafted = drafted_.Expect(rows);
  if (rows == sequences) return plain;
  // The first row more costs most, half of a step perhaps, and the next ones half of that: what is wider than anything
  // so far should be tried, but not at any price.
  constexpr double kOfARow = 0.5;
  const int64_t widest = drafted_.widest();
  const auto more = [](int64_t n, int64_t of) { return static_cast<double>(n) / static_cast<double>(of); };
  if (drafted == 0) return plain * (1 + kOfARow * more(rows - sequences, sequences));
  const double least = std::max(drafted, plain);  // narrower than what has had drafts, it takes that at least
  if (rows <= widest || widest <= sequences) return least;
  return std::max(least, drafted_.Expect(widest) +
                             kOfARow * (drafted_.Expect(widest) - plain) * more(rows - widest, widest - sequences));
}

size_t DraftPolicy::SizeOf(int64_t sequences) {
  const auto size = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(sequences, 1)))) - 1;
  return std::min(size, std::tuple_size_v<decltype(trials_)> - 1);
}

bool DraftPolicy::Rests(int64_t sequences) const {
  const Trial& trial = trials_[SizeOf(sequences)];
  return threshold_ < 0 && !trial.Pays() && trial.idle < trial.wait;
}

bool DraftPolicy::Wants(int64_t sequences) {
  if (threshold_ >= 0) return true;
  if (plain_.Expect(sequences) == 0) return false;
  Trial& trial = TrialOf(sequences);
  if (trial.Pays()) return true;
  if (trial.idle < trial.wait) return false;
  trial = {.wait = std::min(2 * trial.wait, kLongestWait)};
  return true;
}

void DraftPolicy::AddGain(int64_t sequences, int64_t tokens, double seconds) {
  // What was expected varies less than what came: some of it keeps a trial from ending by bad luck.
  constexpr double kExpected = 0.25;
  const double plain = plain_.Expect(sequences);
  if (plain == 0) return;
  Trial& trial = TrialOf(sequences);
  const double won = kExpected * expected_ + (1 - kExpected) * static_cast<double>(tokens);
  trial.credit = std::min(trial.credit + won / static_cast<double>(sequences) - seconds / plain, kMostCredit);
  expected_ = 0;
  trial.begun = true;
  trial.idle = 0;
  if (trial.credit == kMostCredit) trial.wait = kFirstWait;
}

int64_t DraftPolicy::Best(std::span<const Candidate> candidates, int64_t sequences, Making making) const {
  double tokens = static_cast<double>(sequences), best_rate = tokens / Expect(sequences, sequences);
  int64_t best = 0, places = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    tokens += candidates[i].survival;
    places = std::max(places, candidates[i].place + 1);
    const auto taken = static_cast<int64_t>(i) + 1;
    const double rate = tokens / (Expect(sequences + taken, sequences) + Drafting(making, places));
    if (rate > best_rate) best_rate = rate, best = taken;
  }
  return best;
}

// Likeliest first; a draft's places stay in order.
std::vector<DraftPolicy::Candidate> DraftPolicy::CandidatesOf(std::span<const Draft> drafts,
                                                              const Places& places) const {
  std::vector<Candidate> candidates;
  for (size_t d = 0; d < drafts.size(); ++d) {
    double survival = 1;
    for (size_t i = 0; i < drafts[d].confidence.size(); ++i) {
      const Place& place = places[std::min(i, places.size() - 1)];
      survival *= std::clamp(static_cast<double>(drafts[d].confidence[i]) * place.accepted / place.hoped, 0.0, 1.0);
      candidates.push_back({static_cast<float>(survival), d, static_cast<int64_t>(i)});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.survival > b.survival; });
  return candidates;
}

bool DraftPolicy::Tries(int64_t sequences, int64_t best) {
  return (plain_.Expect(sequences) > 0 && !TrialOf(sequences).begun) || (best == 0 && ++refused_ >= kTryAgain);
}

void DraftPolicy::CutByTimes(std::span<Draft> drafts, int64_t room, Making making) {
  expected_ = 0;
  std::vector<Candidate> candidates = CandidatesOf(drafts, making == Making::kDone ? made_ : foreseen_);
  if (candidates.empty()) return;
  if (static_cast<int64_t>(candidates.size()) > room) candidates.resize(static_cast<size_t>(room));
  const auto sequences = static_cast<int64_t>(drafts.size());
  int64_t taken = plain_.Expect(sequences) > 0 ? Best(candidates, sequences, making) : 0;
  if (making != Making::kAtOnce && Tries(sequences, taken) && room > 0) taken = std::max<int64_t>(taken, 1);
  std::vector<size_t> kept(drafts.size());
  for (int64_t i = 0; i < taken; ++i) {
    const Candidate& c = candidates[static_cast<size_t>(i)];
    ++kept[c.draft];
    expected_ += static_cast<double>(c.survival);
  }
  for (size_t d = 0; d < drafts.size(); ++d) drafts[d].Shorten(kept[d]);
}

void DraftPolicy::Cut(std::span<Draft> drafts, int64_t max_rows, Making making) {
  const int64_t room = std::max<int64_t>(0, max_rows - static_cast<int64_t>(drafts.size()));
  if (threshold_ < 0) return CutByTimes(drafts, room, making);
  int64_t left = room;
  for (Draft& d : drafts) {
    const auto unlikely = std::find_if(d.confidence.begin(), d.confidence.end(),
                                       [this](float c) { return c < threshold_; });
    d.Shorten(static_cast<size_t>(std::min<int64_t>(unlikely - d.confidence.begin(), left)));
    left -= static_cast<int64_t>(d.confidence.size());
  }
}

void DraftPolicy::Observe(const Draft& draft, int64_t accepted, bool foreseen) {
  constexpr double kForget = 1 - 1.0 / 64;
  refused_ = 0;
  Places& places = foreseen ? foreseen_ : made_;
  const auto tried = std::min<int64_t>(static_cast<int64_t>(draft.tokens.size()), accepted + 1);
  for (int64_t i = 0; i < std::min(tried, kMaxDraftTokens); ++i) {
    Place& place = places[static_cast<size_t>(i)];
    place.hoped = kForget * place.hoped + std::max(static_cast<double>(draft.confidence[static_cast<size_t>(i)]), 1e-3);
    place.accepted = kForget * place.accepted + (i < accepted ? 1 : 0);
  }
}

}  // namespace dsv4
