#include "ops/accept_drafts/accept_drafts.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void AcceptDraftsRef(const ExecContext& ctx, const AcceptDraftsArgs& a);
void AcceptDraftsCuda(const ExecContext& ctx, const AcceptDraftsArgs& a);

namespace {

constexpr Candidate<AcceptDraftsArgs> kAcceptDraftsCandidates[] = {
    DSV4_CUDA_ROW(AcceptDraftsCuda, "AcceptDraftsKernel"){"ref", SupportsCpu, AcceptDraftsRef},
};

}  // namespace

void AcceptDrafts(const ExecContext& ctx, const AcceptDraftsArgs& a) {
  const int64_t s = a.draft_tokens.dim(0), rows = s * a.rows_each;
  DSV4_CHECK(a.rows_each >= 1 && a.sampled.dim(0) >= rows && a.tokens.dim(0) >= rows && a.positions.dim(0) >= rows);
  DSV4_CHECK(a.draft_positions.dim(0) == s && a.results.dim(0) == s && a.results.dim(1) == 2 * a.rows_each);
  RunOp("accept_drafts", kAcceptDraftsCandidates, ctx, a);
}

OpImplementations DescribeAcceptDrafts(const ExecContext& ctx) {
  return DescribeOp("accept_drafts", kAcceptDraftsCandidates, ctx);
}

}  // namespace dsv4
