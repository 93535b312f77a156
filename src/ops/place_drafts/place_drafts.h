// Writes the draft tokens into the step that verifies them. The R rows of sequence s are contiguous:
//   tokens[s R + j] = drafted[j - 1, s]                                          j = 1 .. R - 1
// If known[s] has a token for a row's position, that token is written instead. A draft token that could not be drawn
// (negative, sample.h) becomes token 0, which is as good a guess as any.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

// Known draft tokens: tokens[i] is for position from + i.
struct KnownDraft {
  const int32_t* tokens = nullptr;  // [count], ids
  int64_t from = 0, count = 0;
};

struct PlaceDraftsArgs {
  Tensor drafted;                     // i32 [R - 1, S]
  Tensor positions;                   // i64 [S R] or more: the positions of the step's rows
  const KnownDraft* known = nullptr;  // [S]
  Tensor tokens;                      // i32 [S R] or more, in place
};
void PlaceDrafts(const ExecContext& ctx, const PlaceDraftsArgs& args);
OpImplementations DescribePlaceDrafts(const ExecContext& ctx);

}  // namespace dsv4
