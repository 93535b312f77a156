#include "model/deepseek_v4/expert_placement.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace dsv4::deepseek_v4 {

std::vector<int64_t> ExpertPlacement::CountByLayer() const {
  std::vector<int64_t> counts;
  for (const std::vector<bool>& layer : on_host_) counts.push_back(std::count(layer.begin(), layer.end(), true));
  return counts;
}

ExpertPlacement ExpertPlacement::Coldest(int64_t embedding_bytes, std::span<const int64_t> expert_bytes,
                                         int64_t num_experts, int64_t bytes, std::span<const uint64_t> counts) {
  ExpertPlacement placement;
  placement.embedding_on_host_ = bytes > 0;
  bytes -= embedding_bytes;
  if (bytes <= 0) return placement;
  const auto num_layers = static_cast<int64_t>(expert_bytes.size());
  DSV4_CHECK(counts.empty() || static_cast<int64_t>(counts.size()) == num_layers * num_experts);
  struct Candidate {
    double warmth;  // times chosen, for a byte
    int64_t round, layer;
    bool operator<(const Candidate& o) const {
      return std::tie(warmth, round, layer) < std::tie(o.warmth, o.round, o.layer);
    }
  };
  std::vector<Candidate> candidates;
  for (int64_t l = 0; l < num_layers; ++l) {
    for (int64_t e = 0; e < num_experts; ++e) {
      const double count = counts.empty() ? 0 : static_cast<double>(counts[static_cast<size_t>(l * num_experts + e)]);
      candidates.push_back({count / static_cast<double>(expert_bytes[static_cast<size_t>(l)]), num_experts - 1 - e, l});
    }
  }
  std::sort(candidates.begin(), candidates.end());
  placement.on_host_.assign(expert_bytes.size(), std::vector<bool>(static_cast<size_t>(num_experts)));
  int64_t moved = 0;
  for (const Candidate& c : candidates) {
    if (moved >= bytes) break;
    placement.on_host_[static_cast<size_t>(c.layer)][static_cast<size_t>(num_experts - 1 - c.round)] = true;
    moved += expert_bytes[static_cast<size_t>(c.layer)];
  }
  return placement;
}

void ExpertPlacement::Swap(const ExpertSwap& swap) {
  std::vector<bool>& layer = on_host_[static_cast<size_t>(swap.layer)];
  layer[static_cast<size_t>(swap.in)] = false;
  layer[static_cast<size_t>(swap.out)] = true;
}

std::vector<ExpertSwap> BetterPlaces(const ExpertPlacement& placement, std::span<const double> chosen,
                                     int64_t num_experts, int64_t most) {
  constexpr double kTimes = 1.5, kMore = 16;  // less is chance, or not worth two copies over the link
  struct Candidate {
    double gain;
    ExpertSwap swap;
  };
  std::vector<Candidate> candidates;
  const auto num_layers = static_cast<int64_t>(chosen.size()) / num_experts;
  for (int64_t l = 0; l < num_layers; ++l) {
    const auto count = [&](int64_t e) { return chosen[static_cast<size_t>(l * num_experts + e)]; };
    std::vector<int64_t> on_host, on_device;
    for (int64_t e = 0; e < num_experts; ++e) (placement.OnHost(l, e) ? on_host : on_device).push_back(e);
    std::sort(on_host.begin(), on_host.end(), [&](int64_t a, int64_t b) { return count(a) > count(b); });
    std::sort(on_device.begin(), on_device.end(), [&](int64_t a, int64_t b) { return count(a) < count(b); });
    for (size_t i = 0; i < std::min(on_host.size(), on_device.size()); ++i) {
      const double in = count(on_host[i]), out = count(on_device[i]);
      if (in < kTimes * out + kMore) break;
      candidates.push_back({in - out, {.layer = l, .in = on_host[i], .out = on_device[i]}});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.gain > b.gain; });
  std::vector<ExpertSwap> swaps;
  for (const Candidate& c : candidates) {
    if (static_cast<int64_t>(swaps.size()) == most) break;
    swaps.push_back(c.swap);
  }
  return swaps;
}

double HostBytesOfToken(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes, int64_t num_experts,
                        int64_t chosen, std::span<const uint64_t> counts) {
  double bytes = 0;
  for (size_t l = 0; l < expert_bytes.size(); ++l) {
    double all = 0, away = 0;
    int64_t number = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
      const bool on_host = placement.OnHost(static_cast<int64_t>(l), e);
      const size_t at = l * static_cast<size_t>(num_experts) + static_cast<size_t>(e);
      const double count = counts.empty() ? 0 : static_cast<double>(counts[at]);
      all += count;
      if (on_host) away += count, ++number;
    }
    const double share = all > 0 ? away / all : static_cast<double>(number) / static_cast<double>(num_experts);
    bytes += share * static_cast<double>(chosen * expert_bytes[l]);
  }
  return bytes;
}

}  // namespace dsv4::deepseek_v4
