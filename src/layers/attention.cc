#include "layers/attention.h"

#include "layers/linear.h"
#include "ops/compress/compress.h"
#include "ops/index_topk/index_topk.h"
#include "ops/linear/linear.h"
#include "ops/q_prepare/q_prepare.h"
#include "ops/round_activation/round_activation.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/window_append/window_append.h"

namespace dsv4 {

namespace {

// The buffer's memory as T rows of `width`.
Tensor Rows(const Tensor& buffer, int64_t num_tokens, int64_t width) {
  DSV4_CHECK(buffer.num_elements() >= num_tokens * width);
  return {buffer.data, buffer.dtype, {num_tokens, width}};
}

CompressArgs CompressorCall(const CompressorWeights& w, const CompressorLayout& layout, bool hadamard, const AttentionSettings& s,
                            const RopeAnglesView& rope, const CacheView& cache, const Tensor& values, const Tensor& gates) {
  return {.values = values, .gates = gates, .slot_bias = w.slot_bias, .norm = w.norm, .norm_eps = s.norm_eps,
          .frequencies = rope.frequencies, .hadamard = hadamard, .cache = cache, .layout = &layout};
}

}  // namespace

void Attention(const ExecContext& ctx, const AttentionWeights& w, const AttentionSettings& s,
               const RopeAnglesView& rope, const CacheView& cache, const LinearInput& x, AttentionBuffers& b,
               const Tensor& y) {
  const int64_t t = x.x.dim(0), n = s.num_heads, dh = s.head_dim;
  const bool compresses = cache.layer->main.ratio != 0, indexes = cache.layer->index.ratio != 0;

  // Everything that reads x, at once. Compressors see it unrounded in every mode.
  const CompressorWeights &main = w.compressor, &keys = w.indexer.compressor;
  const Tensor q_lora = Rows(b.q_lora, t, w.q_a.rows), kv = Rows(b.kv, t, dh);
  const Tensor values = Rows(b.values, t, main.kv_proj.rows), gates = Rows(b.gates, t, main.gate_proj.rows);
  const Tensor index_values = Rows(b.index_values, t, keys.kv_proj.rows);
  const Tensor index_gates = Rows(b.index_gates, t, keys.gate_proj.rows);
  const Tensor index_weights = Rows(b.index_weights, t, w.indexer.weights_proj.rows);
  QuantLinears(ctx, s.activation, x,
               {{w.q_a, q_lora},
                {w.kv_proj, kv},
                {main.kv_proj, values, /*rounds=*/false},
                {main.gate_proj, gates, /*rounds=*/false},
                {keys.kv_proj, index_values, /*rounds=*/false},
                {keys.gate_proj, index_gates, /*rounds=*/false},
                {w.indexer.weights_proj, index_weights}},
               b.rounded);

  // Queries: low rank, normed, expanded; then every head normed without a weight, RoPE on the tail. The tokens' own rows
  // likewise: one vector is key and value. Attention rotates back at the query's position.
  const Tensor q = Rows(b.q, t, n * dh), index_q = Rows(b.index_q, t, w.indexer.q_b.rows), heads = Rows(b.heads, t, n * dh);
  SparseAttentionArgs attend{.q = q.Reshaped({t, n, dh}), .kv = kv, .sink = w.sink, .cache = cache, .out = heads.Reshaped({t, n, dh}),
                             .cos_sin = rope.cos_sin, .norm_eps = s.norm_eps};
  // In prompts on a GPU it makes what o_a reads, blocks of FP16 numbers, and takes queries as q_b itself writes them.
  const bool half = SparseAttentionWritesBlocks(ctx, attend);
  if (half && ReadsBlocks(ctx, s.activation, w.o_a) && n * dh / s.o_groups % 64 == 0) attend.out_blocks = static_cast<uint8_t*>(heads.data);
  const int64_t query_bytes = QueryBlocksBytes(t, n * dh);
  if (half && ReadsBlocks(ctx, s.activation, w.q_b) && b.q.num_bytes() >= query_bytes + t * (n * dh / 64) * 4) {
    attend.queries = {.blocks = static_cast<uint8_t*>(q.data), .squares = reinterpret_cast<float*>(static_cast<uint8_t*>(q.data) + query_bytes),
                      .unit = QueryUnit(w.q_b), .head_dim = dh, .cos_sin = rope.cos_sin};
  }
  // A decode step has one token a sequence: the window row then goes into the ring at once.
  const bool decodes = cache.num_sequences == cache.num_tokens;
  Tensor index_heads;
  if (indexes) index_heads = index_q.Reshaped({t, s.index_heads, s.index_head_dim});
  QPrepareArgs prepare{.q = attend.queries.blocks != nullptr ? Tensor{} : attend.q, .kv = kv, .kv_norm = w.kv_norm, .index_q = index_heads,
                       .cos_sin = rope.cos_sin, .norm_eps = s.norm_eps, .index_dtype = s.index_dtype, .cache = cache, .append = decodes};

  // One token on a GPU: one launch expands and prepares the queries.
  LinearsArgs expand{.x = q_lora, .parts = {{{w.q_b, q}}}, .count = 1, .norm = w.q_a_norm, .norm_eps = s.norm_eps};
  if (indexes) expand.parts[static_cast<size_t>(expand.count++)] = {w.indexer.q_b, index_q};
  const bool expands = decodes && s.activation == ActivationDtype::kNative && QPrepareExpands(ctx, prepare, expand);
  if (expands) {
    prepare.expands = &expand;
  } else {
    NormedQuantLinears(ctx, s.activation, q_lora, w.q_a_norm, s.norm_eps, {{w.q_b, q, /*rounds=*/true, attend.queries}, {w.indexer.q_b, index_q}},
                       b.rounded);
  }

  // Compressed rows, in a decode step by the same launch; and which of them each token reads.
  const auto compress = [&](const CompressArgs& call) {
    if (decodes) {
      prepare.compress[static_cast<size_t>(prepare.num_compress++)] = call;
    } else {
      Compress(ctx, call);
    }
  };
  if (compresses) compress(CompressorCall(main, cache.layer->main, false, s, rope, cache, values, gates));
  if (indexes) {
    compress(CompressorCall(keys, cache.layer->index, s.index_dtype == IndexDtype::kFp4, s, rope, cache, index_values, index_gates));
  }
  QPrepare(ctx, prepare);
  Tensor topk_idxs;
  if (indexes) {
    topk_idxs = b.topk_idxs.Head(t);
    IndexTopk(ctx, {.q = index_heads, .weights = index_weights, .cache = cache, .topk_idxs = topk_idxs});
  }

  attend.topk_idxs = topk_idxs;
  SparseAttention(ctx, attend);
  if (!decodes) WindowAppend(ctx, {.kv = kv, .cache = cache});

  // Output: grouped low rank, then dense.
  const Tensor o_lora = Rows(b.o_lora, t, w.o_a.rows);
  // The official recipe keeps o_a's input unrounded (docs/model.md); NVFP4 activations round every quantised linear's.
  if (s.activation == ActivationDtype::kNvfp4 && w.o_a.quantised()) {
    RoundActivation(ctx, {.x = heads.Reshaped({t * s.o_groups, n * dh / s.o_groups}),
                          .y = heads.Reshaped({t * s.o_groups, n * dh / s.o_groups}), .mode = s.activation});
  }
  uint8_t* o_blocks = nullptr;
  if (attend.out_blocks != nullptr && LinearWritesBlocks(ctx, w.o_a, s.o_groups) && ReadsBlocks(ctx, s.activation, w.o_b)) {
    o_blocks = static_cast<uint8_t*>(o_lora.data);
  }
  Linear(ctx, {.x = heads, .w = w.o_a, .y = o_lora, .groups = s.o_groups, .activation = s.activation, .x_blocks = attend.out_blocks,
               .y_blocks = o_blocks});
  QuantLinear(ctx, s.activation, {o_lora, o_blocks}, w.o_b, y, b.rounded);
}

}  // namespace dsv4
