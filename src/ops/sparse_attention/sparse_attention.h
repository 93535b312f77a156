// Attention of one query token over its window rows and compressed rows, with a sink (docs/dev/model.md):
//   rows of token t at position p, in this order: positions max(0, p-W+1) .. p, then compressed rows w < (p+1)/m:
//     those of topk_idxs[t] when given, else all of them (none when the layer does not compress)
//   s[n, i] = (q[t, n] . row_i) * Dh^-1/2;  out[t, n] = sum_i exp(s_i - max) row_i / (sum_i exp(s_i - max) +
//   exp(sink[n] - max))
// Keys and values are the same rows. float32; the sum's order is a function of the token's own row list only.
// Rows of this step come from `kv` (already rounded), older window rows from the ring, compressed rows from the pages.
// The T queries may be some of the step's Tk tokens: the cache's positions and sequence_of are theirs, its sequences
// the step's.
#pragma once

#include "kv/layout.h"
#include "ops/query_blocks.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxHeadDimOnGpu = 1024;

// Rows of a layer, at most, that a CPU decodes once for all tokens of a step: 32 MiB of 512 channels.
inline constexpr int64_t kMaxSharedRows = 16384;

struct SparseAttentionArgs {
  Tensor q;          // f32 [T, N, Dh]
  Tensor kv;         // f32 [Tk, Dh]: of all tokens of the step
  Tensor sink;       // f32 [N]: a logit as it is, not scaled by Dh^-1/2
  Tensor topk_idxs;  // i32 [T, K], ascending, -1 behind the last; empty: every visible compressed row
  CacheView cache;
  Tensor out;  // f32 [T, N, Dh]; not q
  // f32 [T, Dr/2, 2]: out's tail is then rotated back at the query's position, as Rope with `inverse`
  Tensor cos_sin;
  // Where SparseAttentionWritesBlocks:
  QueryBlocks queries = {};       // instead of q, whose heads' norm is then taken here
  float norm_eps = 0;             // of that norm
  uint8_t* out_blocks = nullptr;  // instead of out: FP16 in blocks (ops/activation_blocks.cuh)
};
// Whether this call takes and makes FP16: prompts on a Hopper GPU.
struct AttentionShape {
  int64_t heads = 0, rope_dim = 0;  // N, Dr
  LayerLayout layer;
  int64_t window = 0;  // W
};
AttentionShape ShapeOf(const SparseAttentionArgs& args);
bool SparseAttentionWritesBlocks(const ExecContext& ctx, const AttentionShape& shape);

// The kernels of a GPU for the heads and rows of a layer: a function of the regime and of these, never of T.
enum class AttentionKernels : uint8_t {
  kAny,     // AttendAnyKernel: float32
  kTiles,   // AttendKernel: wgmma, a few heads of a token a block
  kPrompt,  // DecodeRowsKernel, AttendPromptKernel: rows are decoded once for all tokens; 64 heads a block
};
AttentionKernels GpuAttentionKernels(const ExecContext& ctx, const AttentionShape& shape);
std::string SparseAttentionImplementation(const ExecContext& ctx, const AttentionShape& shape);
void SparseAttention(const ExecContext& ctx, const SparseAttentionArgs& args);
OpImplementations DescribeSparseAttention(const ExecContext& ctx);
OpWork WorkOf(const SparseAttentionArgs& args);

}  // namespace dsv4
