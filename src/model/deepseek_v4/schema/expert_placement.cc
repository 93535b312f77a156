#include "model/deepseek_v4/schema/expert_placement.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace dsv4::deepseek_v4 {

namespace {

std::vector<int64_t> MarkedByLayer(const std::vector<std::vector<bool>>& marks) {
  std::vector<int64_t> counts;
  for (const std::vector<bool>& layer : marks) counts.push_back(std::count(layer.begin(), layer.end(), true));
  return counts;
}

// Expected bytes per token of the experts for which there(layer, expert) is true.
template <typename There>
double BytesOfToken(const There& there, std::span<const int64_t> expert_bytes, int64_t num_experts, int64_t chosen,
                    std::span<const uint64_t> counts) {
  double bytes = 0;
  for (size_t l = 0; l < expert_bytes.size(); ++l) {
    double all = 0, away = 0;
    int64_t number = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
      const size_t at = l * static_cast<size_t>(num_experts) + static_cast<size_t>(e);
      const double count = counts.empty() ? 0 : static_cast<double>(counts[at]);
      all += count;
      if (there(static_cast<int64_t>(l), e)) away += count, ++number;
    }
    const double share = all > 0 ? away / all : static_cast<double>(number) / static_cast<double>(num_experts);
    bytes += share * static_cast<double>(chosen * expert_bytes[l]);
  }
  return bytes;
}

}  // namespace

std::vector<int64_t> ExpertPlacement::CountByLayer() const { return MarkedByLayer(on_host_); }
std::vector<int64_t> ExpertPlacement::DiskByLayer() const { return MarkedByLayer(on_disk_); }

void ExpertPlacement::LeaveOnDisk(std::span<const int64_t> expert_bytes, int64_t bytes,
                                  std::span<const uint64_t> counts) {
  std::vector<std::vector<size_t>> coldest;  // by layer: the experts on the host, least chosen first
  for (size_t l = 0; l < on_host_.size(); ++l) {
    std::vector<size_t>& layer = coldest.emplace_back();
    for (size_t e = on_host_[l].size(); e-- > 0;) {
      if (on_host_[l][e]) layer.push_back(e);
    }
    const auto count = [&](size_t e) { return counts.empty() ? 0 : counts[l * on_host_[l].size() + e]; };
    std::stable_sort(layer.begin(), layer.end(), [&](size_t a, size_t b) { return count(a) < count(b); });
  }
  for (size_t round = 0, moved = 1; bytes > 0 && moved > 0; ++round) {
    moved = 0;
    for (size_t l = 0; l < coldest.size() && bytes > 0; ++l) {
      if (round >= coldest[l].size()) continue;
      if (on_disk_.empty()) on_disk_.assign(on_host_.size(), std::vector<bool>(on_host_.front().size()));
      on_host_[l][coldest[l][round]] = false;
      on_disk_[l][coldest[l][round]] = true;
      bytes -= expert_bytes[l];
      ++moved;
    }
  }
}

ExpertPlacement ExpertPlacement::Coldest(int64_t embedding_bytes, std::span<const int64_t> expert_bytes,
                                         int64_t num_experts, int64_t bytes, std::span<const uint64_t> counts,
                                         int64_t slots) {
  ExpertPlacement placement;
  placement.embedding_on_host_ = bytes > 0;
  bytes -= embedding_bytes;
  if (bytes <= 0 && slots >= num_experts) return placement;
  const auto num_layers = static_cast<int64_t>(expert_bytes.size());
  DSV4_CHECK(counts.empty() || static_cast<int64_t>(counts.size()) == num_layers * num_experts);
  struct Candidate {
    double warmth;  // number of choices per byte
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
  std::vector<int64_t> resident(expert_bytes.size(), num_experts);
  const auto move = [&](const Candidate& c) {
    placement.Move(c.layer, num_experts - 1 - c.round, /*to_host=*/true);
    --resident[static_cast<size_t>(c.layer)];
    moved += expert_bytes[static_cast<size_t>(c.layer)];
  };
  for (const Candidate& c : candidates) {
    if (resident[static_cast<size_t>(c.layer)] > slots) move(c);
  }
  for (const Candidate& c : candidates) {
    if (moved >= bytes) break;
    if (!placement.OnHost(c.layer, num_experts - 1 - c.round)) move(c);
  }
  return placement;
}

std::vector<ExpertSwap> BetterPlaces(const ExpertPlacement& placement, std::span<const double> chosen,
                                     int64_t num_experts, int64_t most) {
  constexpr double kTimes = 1.5, kMore = 4;  // a smaller gain may be chance, or not worth two copies over the link
  struct Candidate {
    double gain;
    ExpertSwap swap;
  };
  std::vector<Candidate> candidates;
  const auto num_layers = static_cast<int64_t>(chosen.size()) / num_experts;
  for (int64_t l = 0; l < num_layers; ++l) {
    const auto count = [&](int64_t e) { return chosen[static_cast<size_t>(l * num_experts + e)]; };
    std::vector<int64_t> on_host, on_device;
    for (int64_t e = 0; e < num_experts; ++e) {
      if (!placement.OnDisk(l, e)) (placement.OnHost(l, e) ? on_host : on_device).push_back(e);
    }
    const size_t pairs = std::min({on_host.size(), on_device.size(), static_cast<size_t>(most)});
    const auto first = [pairs](std::vector<int64_t>& experts, const auto& before) {
      std::partial_sort(experts.begin(), experts.begin() + static_cast<std::ptrdiff_t>(pairs), experts.end(), before);
    };
    first(on_host, [&](int64_t a, int64_t b) { return count(a) > count(b); });
    first(on_device, [&](int64_t a, int64_t b) { return count(a) < count(b); });
    for (size_t i = 0; i < pairs; ++i) {
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
  return BytesOfToken([&](int64_t l, int64_t e) { return placement.OnHost(l, e); }, expert_bytes, num_experts, chosen,
                      counts);
}

double DiskBytesOfToken(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes, int64_t num_experts,
                        int64_t chosen, std::span<const uint64_t> counts) {
  return BytesOfToken([&](int64_t l, int64_t e) { return placement.OnDisk(l, e); }, expert_bytes, num_experts, chosen,
                      counts);
}

}  // namespace dsv4::deepseek_v4
