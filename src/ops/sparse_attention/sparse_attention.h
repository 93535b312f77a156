// Attention of one query token over its window rows and compressed rows, with a sink (docs/dev/model.md):
//   rows of token t at position p, in this order: positions max(0, p-W+1) .. p, then compressed rows w < (p+1)/m:
//     the rows in topk_idxs[t] if it is given, else all of them (none if the layer does not compress)
//   s[n, i]   = (q[t, n] . row_i) * Dh^-1/2
//   out[t, n] = sum_i exp(s_i - max) row_i / (sum_i exp(s_i - max) + exp(sink[n] - max))
// Keys and values are the same rows. float32; the order of the sum is a function of the token's own row list only.
// Rows of this step come from `kv` (already rounded), older window rows from the ring, compressed rows from the pages.
// The T queries may be only some of the step's Tk tokens. The cache's positions and sequence_of then describe the
// queries, and its sequences describe the step.
#pragma once

#include "kv/layout.h"
#include "ops/query_blocks.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxHeadDimOnGpu = 1024;

// The largest number of a layer's rows that a CPU decodes once for all tokens of a step: 32 MiB at 512 channels.
inline constexpr int64_t kMaxSharedRows = 16384;

struct SparseAttentionArgs {
  Tensor q;          // f32 [T, N, Dh]
  Tensor kv;         // f32 [Tk, Dh]: all tokens of the step
  Tensor sink;       // f32 [N]: a logit, not scaled by Dh^-1/2
  Tensor topk_idxs;  // i32 [T, K], ascending, then -1; empty: every visible compressed row
  CacheView cache;
  Tensor out;  // f32 [T, N, Dh]; not q
  // f32 [T, Dr/2, 2], or empty. If given, the RoPE tail of out is rotated back at the query's position, as Rope with
  // `inverse`.
  Tensor cos_sin;
  // Only if SparseAttentionWritesBlocks:
  QueryBlocks queries = {};       // instead of q; the op then applies the head norm
  float norm_eps = 0;             // of that norm
  uint8_t* out_blocks = nullptr;  // instead of out: FP16 in blocks (ops/activation_blocks.cuh)
};
// Whether the op can read and write FP16: prompts on a Hopper GPU.
struct AttentionShape {
  int64_t heads = 0, rope_dim = 0;  // N, Dr
  LayerLayout layer;
  int64_t window = 0;  // W
};
AttentionShape ShapeOf(const SparseAttentionArgs& args);
bool SparseAttentionWritesBlocks(const ExecContext& ctx, const AttentionShape& shape);

// The GPU kernels for the heads and rows of a layer: a function of the regime and the shape, never of T.
enum class AttentionKernels : uint8_t {
  kAny,     // AttendAnyKernel: float32
  kTiles,   // AttendKernel: wgmma; a block computes a few heads of a token
  kPrompt,  // DecodeRowsKernel, AttendPromptKernel: rows are decoded once for all tokens; 64 heads per block
};
AttentionKernels GpuAttentionKernels(const ExecContext& ctx, const AttentionShape& shape);
std::string SparseAttentionImplementation(const ExecContext& ctx, const AttentionShape& shape);
void SparseAttention(const ExecContext& ctx, const SparseAttentionArgs& args);
OpImplementations DescribeSparseAttention(const ExecContext& ctx);
OpWork WorkOf(const SparseAttentionArgs& args);

}  // namespace dsv4
