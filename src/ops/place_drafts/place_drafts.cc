#include "ops/place_drafts/place_drafts.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void PlaceDraftsRef(const ExecContext& ctx, const PlaceDraftsArgs& a);
void PlaceDraftsCuda(const ExecContext& ctx, const PlaceDraftsArgs& a);

namespace {

constexpr Candidate<PlaceDraftsArgs> kPlaceDraftsCandidates[] = {
    DSV4_CUDA_ROW(PlaceDraftsCuda, "PlaceDraftsKernel"){"ref", SupportsCpu, PlaceDraftsRef},
};

}  // namespace

void PlaceDrafts(const ExecContext& ctx, const PlaceDraftsArgs& a) {
  const int64_t rows = (a.drafted.dim(0) + 1) * a.drafted.dim(1);
  DSV4_CHECK(a.tokens.dim(0) >= rows && a.positions.dim(0) >= rows && a.known != nullptr);
  RunOp("place_drafts", kPlaceDraftsCandidates, ctx, a);
}

OpImplementations DescribePlaceDrafts(const ExecContext& ctx) {
  return DescribeOp("place_drafts", kPlaceDraftsCandidates, ctx);
}

}  // namespace dsv4
