#include <algorithm>

#include "ops/gather_shares/gather_shares.h"

namespace dsv4 {

namespace {

// Copies a rank's units of `v`, which are contiguous at `own`, to their positions.
void PlaceShare(const SharedValue& v, const float* own, const RankShare& share) {
  const int64_t run = (share.end - share.begin) * v.unit;
  for (int64_t c = 0; c < v.columns; ++c) std::copy_n(own + c * run, run, v.all + (c * v.units + share.begin) * v.unit);
}

}  // namespace

void GatherSharesRef(const ExecContext& ctx, const GatherSharesArgs& a) {
  const RankView& ranks = *ctx.ranks;
  if (!ranks.exchange->Meet(ranks.rank, a.site, const_cast<GatherSharesArgs*>(&a))) return;
  for (int p = 0; p < ranks.count; ++p) {
    const auto& theirs = *static_cast<const GatherSharesArgs*>(ranks.exchange->shown(p));
    for (size_t i = 0; i < static_cast<size_t>(a.num_values); ++i) {
      const SharedValue& v = a.values[i];
      if (p == ranks.rank && v.in_place()) continue;
      PlaceShare(v, theirs.values[i].own, v.ShareOfRank(p, ranks.count));
    }
  }
  (void)ranks.exchange->Leave(ranks.rank, a.site);  // the exchange's status has the error
}

}  // namespace dsv4
