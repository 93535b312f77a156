#include <algorithm>

#include "ops/place_drafts/place_drafts.h"

namespace dsv4 {

void PlaceDraftsRef(const ExecContext&, const PlaceDraftsArgs& a) {
  const int64_t places = a.drafted.dim(0), num_sequences = a.drafted.dim(1), r = places + 1;
  for (int64_t s = 0; s < num_sequences; ++s) {
    const KnownDraft& known = a.known[s];
    for (int64_t j = 1; j < r; ++j) {
      const int64_t at = a.positions.i64()[s * r] + j - known.from;
      const int32_t token = at >= 0 && at < known.count ? known.tokens[at]
                                                        : a.drafted.i32()[(j - 1) * num_sequences + s];
      a.tokens.i32()[s * r + j] = std::max(token, 0);
    }
  }
}

}  // namespace dsv4
