// The lightning indexer's choice (docs/dev/model.md), in float32:
//   score[t, w] = sum_h weight[t, h] * max(0, q[t, h] . key[w])        for visible rows w < (position[t] + 1) / m
//   topk_idxs[t] = the min(K, visible) rows of largest score, ties to the lower row, in ascending row order; then -1
// Sums over heads run in order of h; a token's result does not depend on the batch.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxIndexDimOnGpu = 512;
// The number of tokens of one sequence that a CPU thread scores together. It keeps a float32 per token and visible row.
inline constexpr int64_t kIndexTokensAtOnce = 8;

struct IndexTopkArgs {
  Tensor q;  // f32 [T, Ni, Di], rounded
  // f32 [T, Ni], may be negative. Without the paper's factor Di^-1/2 Ni^-1/2, which cannot change the choice.
  Tensor weights;
  CacheView cache;   // keys: rows of cache.layer->index
  Tensor topk_idxs;  // i32 [T, K]
};
void IndexTopk(const ExecContext& ctx, const IndexTopkArgs& args);

// Whether a GPU scores these heads and keys on tensor cores: a function of shapes and formats, never of T.
bool ScoresOnTensorCores(int64_t heads, const CompressorLayout& keys);
// Names the kernel that computes the scores on this device. SelectOneKernel or another selection kernel runs after it.
std::string IndexTopkImplementation(const ExecContext& ctx, int64_t num_tokens, int64_t heads,
                                    const CompressorLayout& keys);
OpImplementations DescribeIndexTopk(const ExecContext& ctx);
OpWork WorkOf(const IndexTopkArgs& args);

}  // namespace dsv4
