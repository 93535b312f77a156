#include <algorithm>

#include "ops/gather_shares/gather_shares.h"

namespace dsv4 {

void GatherSharesRef(const ExecContext& ctx, const GatherSharesArgs& a) {
  const RankView& ranks = *ctx.ranks;
  const int64_t rows = a.y.dim(0), width = a.y.num_elements() / rows;
  if (!ranks.exchange->Meet(ranks.rank, a.site, a.y.f32())) return;
  for (int p = 0; p < ranks.count; ++p) {
    if (p == ranks.rank) continue;
    const RankShare share = ShareOf(rows, p, ranks.count, kShareRows);
    const float* from = static_cast<const float*>(ranks.exchange->shown(p));
    std::copy(from + share.begin * width, from + share.end * width, a.y.f32() + share.begin * width);
  }
  (void)ranks.exchange->Leave(ranks.rank, a.site);  // the exchange's status says what went wrong
}

}  // namespace dsv4
