// The step that verifies drafts, from what was drafted. Of sequence s, whose R rows lie one behind the other:
//   tokens[s R + j] = drafted[j - 1, s]                                          j = 1 .. R - 1
// but where known[s] says what comes at that position. A draft that could not be drawn (negative, sample.h) becomes
// token 0: a guess as good as any.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

// Tokens that are taken for drafts, of positions from `from` on.
struct KnownDraft {
  const int32_t* tokens = nullptr;  // [count], ids
  int64_t from = 0, count = 0;
};

struct PlaceDraftsArgs {
  Tensor drafted;                     // i32 [R - 1, S]
  Tensor positions;                   // i64 [S R] or more: of the step's rows
  const KnownDraft* known = nullptr;  // [S]
  Tensor tokens;                      // i32 [S R] or more, in place
};
void PlaceDrafts(const ExecContext& ctx, const PlaceDraftsArgs& args);
OpImplementations DescribePlaceDrafts(const ExecContext& ctx);

}  // namespace dsv4
