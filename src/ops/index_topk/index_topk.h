// The lightning indexer's choice (docs/dev/model.md), in float32:
//   score[t, w] = sum_h weight[t, h] * max(0, q[t, h] . key[w])        for visible rows w < (position[t] + 1) / m
//   topk_idxs[t] = the min(K, visible) rows of largest score, ties to the lower row, in ascending row order; then -1
// Head sums run in order of h; a token's result does not depend on the batch.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxIndexDimOnGpu = 512;
// Tokens of one sequence that a thread of a CPU scores together: it keeps a float32 of each for every visible row.
inline constexpr int64_t kIndexTokensAtOnce = 8;

struct IndexTopkArgs {
  Tensor q;  // f32 [T, Ni, Di], rounded
  // f32 [T, Ni]: may be negative. The paper's factor Di^-1/2 Ni^-1/2 is left out: it cannot change the choice
  Tensor weights;
  CacheView cache;   // keys: rows of cache.layer->index
  Tensor topk_idxs;  // i32 [T, K]
};
void IndexTopk(const ExecContext& ctx, const IndexTopkArgs& args);

// Whether a GPU scores such heads and keys on tensor cores: a function of shapes and formats, never of T.
bool ScoresOnTensorCores(int64_t heads, const CompressorLayout& keys);
// What scores on this device; behind it SelectOneKernel and its like choose.
std::string IndexTopkImplementation(const ExecContext& ctx, int64_t num_tokens, int64_t heads,
                                    const CompressorLayout& keys);
OpImplementations DescribeIndexTopk(const ExecContext& ctx);
OpWork WorkOf(const IndexTopkArgs& args);

}  // namespace dsv4
