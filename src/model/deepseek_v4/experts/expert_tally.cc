#include "model/deepseek_v4/experts/expert_tally.h"

namespace dsv4::deepseek_v4 {

void ExpertTally::Close(std::span<const uint64_t> counters) {
  const ExpertUse use = Use(counters);
  chosen_resident_ = use.chosen_resident;
  read_bytes_ = use.fetched_bytes;
  closed_.assign(counters.begin(), counters.end());
}

ExpertUse ExpertTally::Use(std::span<const uint64_t> counters) const {
  const auto n = static_cast<size_t>(size());
  ExpertUse use{.experts = size(), .chosen_resident = chosen_resident_, .fetched_bytes = read_bytes_};
  const auto since = [&](size_t at) { return counters[at] - (closed_.empty() ? 0 : closed_[at]); };
  for (size_t at = 0; at < n; ++at) {
    const auto l = static_cast<int64_t>(at) / num_experts_, e = static_cast<int64_t>(at) % num_experts_;
    const int64_t bytes = expert_bytes_[static_cast<size_t>(l)];
    use.chosen += counters[at];
    if (placement_.OnDisk(l, e)) {
      ++use.on_disk;
      continue;
    }
    if (!placement_.OnHost(l, e)) {
      use.chosen_resident += since(at);
      continue;
    }
    ++use.on_host;
    use.host_bytes += bytes;
    use.fetched_bytes += static_cast<double>(since(n + at)) * static_cast<double>(bytes);
  }
  return use;
}

}  // namespace dsv4::deepseek_v4
