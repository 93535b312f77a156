#include "layers/attention.h"

#include "layers/linear.h"
#include "ops/compress/compress.h"
#include "ops/index_topk/index_topk.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/round_activation/round_activation.h"
#include "ops/round_index_query/round_index_query.h"
#include "ops/round_kv/round_kv.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/window_append/window_append.h"

namespace dsv4 {

namespace {

// The buffer's memory as T rows of `width`.
Tensor Rows(const Tensor& buffer, int64_t num_tokens, int64_t width) {
  DSV4_CHECK(buffer.num_elements() >= num_tokens * width);
  return {buffer.data, buffer.dtype, {num_tokens, width}};
}

void RunCompressor(const ExecContext& ctx, const CompressorWeights& w, const CompressorLayout& layout, bool hadamard,
                   const AttentionSettings& s, const RopeAnglesView& rope, const CacheView& cache, const Tensor& x,
                   AttentionBuffers& b) {
  const Tensor values = Rows(b.values, x.dim(0), w.kv_proj.rows);
  const Tensor gates = Rows(b.gates, x.dim(0), w.gate_proj.rows);
  Linear(ctx, {.x = x, .w = w.kv_proj, .y = values});
  Linear(ctx, {.x = x, .w = w.gate_proj, .y = gates});
  Compress(ctx, {.values = values, .gates = gates, .slot_bias = w.slot_bias, .norm = w.norm, .norm_eps = s.norm_eps,
                 .frequencies = rope.frequencies, .hadamard = hadamard, .cache = cache, .layout = &layout});
}

// The compressed rows that each token attends to, into b.topk_idxs.
void RunIndexer(const ExecContext& ctx, const IndexerWeights& w, const AttentionSettings& s, const RopeAnglesView& rope,
                const CacheView& cache, const Tensor& x, AttentionBuffers& b) {
  const int64_t t = x.dim(0);
  RunCompressor(ctx, w.compressor, cache.layer->index, s.index_dtype == IndexDtype::kFp4, s, rope, cache, x, b);
  const Tensor q = Rows(b.index_q, t, w.q_b.rows);
  QuantLinear(ctx, s.activation, Rows(b.q_lora, t, w.q_b.cols), w.q_b, q, b.rounded);
  const Tensor q_heads = q.Reshaped({t, s.index_heads, s.index_head_dim});
  Rope(ctx, {.x = q_heads, .cos_sin = rope.cos_sin});
  RoundIndexQuery(ctx, {.q = q_heads, .dtype = s.index_dtype});
  const Tensor weights = Rows(b.index_weights, t, s.index_heads);
  QuantLinear(ctx, s.activation, x, w.weights_proj, weights, b.rounded);
  IndexTopk(ctx, {.q = q_heads, .weights = weights, .cache = cache, .topk_idxs = b.topk_idxs.Head(t)});
}

}  // namespace

void Attention(const ExecContext& ctx, const AttentionWeights& w, const AttentionSettings& s,
               const RopeAnglesView& rope, const CacheView& cache, const Tensor& x, AttentionBuffers& b,
               const Tensor& y) {
  const int64_t t = x.dim(0), n = s.num_heads, dh = s.head_dim;

  // Queries: low rank, normed, expanded; every head normed without a weight; RoPE on the tail.
  const Tensor q_lora = Rows(b.q_lora, t, w.q_a.rows);
  QuantLinear(ctx, s.activation, x, w.q_a, q_lora, b.rounded);
  RmsNorm(ctx, {.x = q_lora, .weight = w.q_a_norm, .y = q_lora, .eps = s.norm_eps});
  const Tensor q = Rows(b.q, t, n * dh);
  QuantLinear(ctx, s.activation, q_lora, w.q_b, q, b.rounded);
  RmsNorm(ctx, {.x = q.Reshaped({t * n, dh}), .y = q.Reshaped({t * n, dh}), .eps = s.norm_eps});
  Rope(ctx, {.x = q.Reshaped({t, n, dh}), .cos_sin = rope.cos_sin});

  // The tokens' own rows: one vector is key and value.
  const Tensor kv = Rows(b.kv, t, dh);
  QuantLinear(ctx, s.activation, x, w.kv_proj, kv, b.rounded);
  RmsNorm(ctx, {.x = kv, .weight = w.kv_norm, .y = kv, .eps = s.norm_eps});
  Rope(ctx, {.x = kv.Reshaped({t, 1, dh}), .cos_sin = rope.cos_sin});
  RoundKv(ctx, {.kv = kv, .format = cache.layer->window_row});

  // Compressed rows, and which of them each token reads.
  Tensor topk_idxs;
  if (cache.layer->main.ratio != 0) RunCompressor(ctx, w.compressor, cache.layer->main, false, s, rope, cache, x, b);
  if (cache.layer->index.ratio != 0) {
    RunIndexer(ctx, w.indexer, s, rope, cache, x, b);
    topk_idxs = b.topk_idxs.Head(t);
  }

  const Tensor heads = Rows(b.heads, t, n * dh);
  SparseAttention(ctx, {.q = q.Reshaped({t, n, dh}), .kv = kv, .sink = w.sink, .topk_idxs = topk_idxs, .cache = cache,
                        .out = heads.Reshaped({t, n, dh})});
  WindowAppend(ctx, {.kv = kv, .cache = cache});

  // Output: rotate back at the query's position, grouped low rank, then dense.
  Rope(ctx, {.x = heads.Reshaped({t, n, dh}), .cos_sin = rope.cos_sin, .inverse = true});
  const Tensor o_lora = Rows(b.o_lora, t, w.o_a.rows);
  // The official recipe keeps o_a's input unrounded (docs/model.md); NVFP4 activations round every quantised linear's.
  if (s.activation == ActivationDtype::kNvfp4 && w.o_a.quantised()) {
    RoundActivation(ctx, {.x = heads.Reshaped({t * s.o_groups, n * dh / s.o_groups}),
                          .y = heads.Reshaped({t * s.o_groups, n * dh / s.o_groups}), .mode = s.activation});
  }
  Linear(ctx, {.x = heads, .w = w.o_a, .y = o_lora, .groups = s.o_groups});
  QuantLinear(ctx, s.activation, o_lora, w.o_b, y, b.rounded);
}

}  // namespace dsv4
