#include "engine/draft_policy.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace dsv4 {

void DraftPolicy::AddStep(int64_t rows, double seconds) {
  constexpr double kNew = 0.2;
  const auto [at, is_first] = seconds_.try_emplace(rows, seconds);
  if (!is_first) at->second += kNew * (seconds - at->second);
}

double DraftPolicy::Expect(int64_t rows) const {
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

int64_t DraftPolicy::Best(std::span<const float> survivals, int64_t sequences) const {
  double tokens = static_cast<double>(sequences), best_rate = tokens / Expect(sequences);
  int64_t best = 0;
  for (size_t i = 0; i < survivals.size(); ++i) {
    tokens += survivals[i];
    const auto taken = static_cast<int64_t>(i) + 1;
    const double rate = tokens / Expect(sequences + taken);
    if (rate > best_rate) best_rate = rate, best = taken;
  }
  return best;
}

void DraftPolicy::CutByTimes(std::span<Draft> drafts, int64_t room) {
  struct Place {
    float survival;
    size_t draft;
  };
  std::vector<Place> places;
  for (size_t d = 0; d < drafts.size(); ++d) {
    float survival = 1;
    for (const float confidence : drafts[d].confidence)
      places.push_back({survival *= std::clamp(confidence, 0.0f, 1.0f), d});
  }
  if (places.empty()) return;
  // Likeliest first; a draft's places stay in order.
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.survival > b.survival; });
  if (static_cast<int64_t>(places.size()) > room) places.resize(static_cast<size_t>(room));
  std::vector<float> survivals;
  for (const Place& p : places) survivals.push_back(p.survival);
  const auto sequences = static_cast<int64_t>(drafts.size());
  int64_t taken = Expect(sequences) > 0 ? Best(survivals, sequences) : 0;
  if (taken == 0 && room > 0 && ++refused_ % kTryAgain == 0) taken = 1;
  std::vector<size_t> kept(drafts.size());
  for (int64_t i = 0; i < taken; ++i) ++kept[places[static_cast<size_t>(i)].draft];
  for (size_t d = 0; d < drafts.size(); ++d) drafts[d].Shorten(kept[d]);
}

void DraftPolicy::Cut(std::span<Draft> drafts, int64_t max_rows) {
  const int64_t room = std::max<int64_t>(0, max_rows - static_cast<int64_t>(drafts.size()));
  if (threshold_ < 0) return CutByTimes(drafts, room);
  int64_t left = room;
  for (Draft& d : drafts) {
    const auto unlikely = std::find_if(d.confidence.begin(), d.confidence.end(),
                                       [this](float c) { return c < threshold_; });
    d.Shorten(static_cast<size_t>(std::min<int64_t>(unlikely - d.confidence.begin(), left)));
    left -= static_cast<int64_t>(d.tokens.size());
  }
}

}  // namespace dsv4
