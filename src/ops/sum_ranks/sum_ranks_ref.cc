#include <algorithm>
#include <vector>

#include "ops/sum_ranks/sum_ranks.h"

namespace dsv4 {

void SumRanksRef(const ExecContext& ctx, const SumRanksArgs& a) {
  const RankView& ranks = *ctx.ranks;
  const auto count = static_cast<size_t>(ranks.count);
  const int64_t n = a.y.num_elements();
  if (!ranks.exchange->Meet(ranks.rank, a.site, a.y.f32())) return;
  std::vector<float> sum(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    float part[kMaxRanks] = {};
    for (size_t r = 0; r < count; ++r)
      part[r] = static_cast<const float*>(ranks.exchange->shown(static_cast<int>(r)))[i];
    for (size_t width = 1; width < count; width *= 2) {
      for (size_t r = 0; r < count; r += 2 * width) part[r] += part[r + width];
    }
    sum[static_cast<size_t>(i)] = part[0];
  }
  if (!ranks.exchange->Leave(ranks.rank, a.site)) return;
  std::copy(sum.begin(), sum.end(), a.y.f32());
}

}  // namespace dsv4
