#include "ops/accept_drafts/accept_one.h"

namespace dsv4 {

void AcceptDraftsRef(const ExecContext&, const AcceptDraftsArgs& a) {
  for (int64_t s = 0; s < a.draft_tokens.dim(0); ++s) AcceptOne(AcceptPointers(a), s);
}

}  // namespace dsv4
