#include "layers/attention.h"

#include <functional>

#include "layers/linear.h"
#include "layers/plan.h"
#include "layers/slices.h"
#include "ops/compress/compress.h"
#include "ops/gather_shares/gather_shares.h"
#include "ops/index_topk/index_topk.h"
#include "ops/linear/linear.h"
#include "ops/q_prepare/q_prepare.h"
#include "ops/round_activation/round_activation.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/window_append/window_append.h"

namespace dsv4 {

namespace {

// One call's arguments, and its values as they lie in the buffers; of slices, the first one's. A rank projects and
// attends for the T' tokens `own`: all of them, or its own. What becomes keys has T rows, and where tokens are cut is
// gathered.
struct Call {
  const AttentionPlan& plan;
  const AttentionWeights& w;
  HeadWeights of_heads;
  const AttentionSettings& s;
  const RopeAnglesView& rope;
  const CacheView& cache;
  const Room& rounded;
  bool expands;  // as the plan has it, where the step is one that it can be done for
  RankShare own;
  RopeAnglesView own_rope;
  CacheView own_cache;
  Tensor kv, values, gates, index_values, index_gates;  // [T, ...]
  Tensor q_lora, index_weights;                         // [T', ...]
  Tensor q, index_q;                                    // [T', N, Dh], [T', Ni, Di]
  QueryBlocks queries;                                  // instead of q, where the plan says so
  Activation heads, o_lora;

  int64_t num_own() const { return own.end - own.begin; }
  Tensor Own(const Tensor& rows) const { return rows.Rows(own.begin, num_own()); }

  bool compresses() const { return cache.layer->main.ratio != 0; }
  bool indexes() const { return cache.layer->index.ratio != 0; }
};

// The buffer's memory as T rows of `width`.
Tensor Rows(const Tensor& buffer, int64_t t, int64_t width) {
  DSV4_CHECK(buffer.num_elements() >= t * width);
  return {buffer.data, buffer.dtype, {t, width}};
}

QueryBlocks QueriesIn(const Room& room, const AttentionWeights& w, const RopeAnglesView& rope, int64_t t,
                      int64_t head_dim) {
  DSV4_CHECK(QueryBytes(t, w.q_b.rows) <= room.bytes);
  return QueryBlocksIn(room.data, t, w.q_b, head_dim, rope.cos_sin);
}

// The tokens `own` of the step, whose keys are in the cache with everybody's.
CacheView CacheOf(const CacheView& cache, const RankShare& own) {
  CacheView view = cache;
  view.sequence_of += own.begin;
  view.positions += own.begin;
  view.num_tokens = own.end - own.begin;
  return view;
}

Call Place(const ExecContext& ctx, const AttentionPlan& plan, const AttentionWeights& w, const AttentionSettings& s,
           const RopeAnglesView& rope, const CacheView& cache, const AttentionBuffers& b, bool before) {
  const int64_t t = cache.num_tokens, width = s.num_heads * s.head_dim;
  const RankShare own = plan.by_tokens ? RowsOfRank(ctx, t) : RankShare{0, t};
  const int64_t num_own = own.end - own.begin;
  const CompressorWeights &main = w.compressor, &keys = w.indexer.compressor;
  Call c{.plan = plan,
         .w = w,
         .of_heads = {w.q_b, w.sink, w.o_a, w.o_b},
         .s = s,
         .rope = rope,
         .cache = cache,
         .rounded = b.rounded,
         .expands = plan.expands && before && cache.num_sequences == 1,
         .own = own,
         .own_rope = {rope.frequencies, rope.cos_sin.Rows(own.begin, num_own)},
         .own_cache = CacheOf(cache, own),
         .kv = Rows(b.kv, t, s.head_dim),
         .values = Rows(b.values, t, main.kv_proj.rows),
         .gates = Rows(b.gates, t, main.gate_proj.rows),
         .index_values = Rows(b.index_values, t, keys.kv_proj.rows),
         .index_gates = Rows(b.index_gates, t, keys.gate_proj.rows),
         .q_lora = Rows(b.q_lora, num_own, w.q_a.rows),
         .index_weights = Rows(b.index_weights, num_own, w.indexer.weights_proj.rows),
         .q = b.q.Floats(num_own, width).Reshaped({num_own, s.num_heads, s.head_dim}),
         .index_q = {},
         .queries = {},
         .heads = b.heads.As(plan.heads, num_own, width),
         .o_lora = b.o_lora.As(plan.o_lora, num_own, w.o_a.rows)};
  if (c.indexes())
    c.index_q = Rows(b.index_q, num_own, w.indexer.q_b.rows).Reshaped({num_own, s.index_heads, s.index_head_dim});
  if (plan.queries == Form::kQueries) c.queries = QueriesIn(b.q, w, c.own_rope, num_own, s.head_dim);
  return c;
}

// Everything that reads x, at once. Compressors see it unrounded in every mode.
void Project(const ExecContext& ctx, const Call& c, const Activation& x) {
  const CompressorWeights &main = c.w.compressor, &keys = c.w.indexer.compressor;
  QuantLinear(ctx, c.s.activation, {x.form, c.Own(x.x), x.blocks},
              {{c.w.q_a, c.plan.q_a, c.q_lora},
               {c.w.kv_proj, c.plan.kv_proj, c.Own(c.kv)},
               {main.kv_proj, Input::kAsIs, c.Own(c.values)},
               {main.gate_proj, Input::kAsIs, c.Own(c.gates)},
               {keys.kv_proj, Input::kAsIs, c.Own(c.index_values)},
               {keys.gate_proj, Input::kAsIs, c.Own(c.index_gates)},
               {c.w.indexer.weights_proj, c.plan.index_weights, c.index_weights}},
              c.rounded);
}

LinearCall QueriesOf(const Call& c) {
  const QuantTensor& q_b = c.of_heads.q_b;
  return {q_b, c.plan.q_b, c.q.Reshaped({c.num_own(), q_b.rows}), c.queries};
}

// Queries from their low rank: normed, expanded. Those of slices are expanded one by one, later.
void Expand(const ExecContext& ctx, const Call& c) {
  const int64_t t = c.num_own();
  NormedQuantLinear(
      ctx, c.s.activation, c.q_lora, c.w.q_a_norm, c.s.norm_eps, c.plan.norms_along,
      {c.plan.sliced ? LinearCall{} : QueriesOf(c),
       {c.w.indexer.q_b, c.plan.index_q_b, c.index_q ? c.index_q.Reshaped({t, c.w.indexer.q_b.rows}) : Tensor{}}},
      c.rounded);
}

CompressArgs CompressorCall(const Call& c, const CompressorWeights& w, const CompressorLayout& layout, bool hadamard,
                            const Tensor& values, const Tensor& gates) {
  return {.values = values,
          .gates = gates,
          .slot_bias = w.slot_bias,
          .norm = w.norm,
          .norm_eps = c.s.norm_eps,
          .frequencies = c.rope.frequencies,
          .hadamard = hadamard,
          .cache = c.cache,
          .layout = &layout};
}

// What becomes keys, from every rank its rows: they travel while the queries are expanded.
GatherSharesArgs SendKeys(const ExecContext& ctx, const Call& c, int64_t site) {
  if (c.num_own() > 0) {
    QPrepare(ctx, {.kv = c.Own(c.kv),
                   .kv_norm = c.w.kv_norm,
                   .cos_sin = c.own_rope.cos_sin,
                   .norm_eps = c.s.norm_eps,
                   .cache = c.own_cache});
  }
  GatherSharesArgs keys{.site = site};
  for (const Tensor& rows : {c.kv, c.values, c.gates, c.index_values, c.index_gates}) keys.AddRows(ctx, rows);
  SendShares(ctx, keys);
  return keys;
}

// Every head normed without a weight, RoPE on the tail; the tokens' own rows likewise, unless they are among the `keys`
// of ranks: one vector is key and value. With `append` their rows go into the cache by the same launch.
void Prepare(const ExecContext& ctx, const Call& c, bool append, const GatherSharesArgs& keys, int64_t* site) {
  const int64_t t = c.num_own();
  QPrepareArgs prepare{.q = c.queries.blocks != nullptr || c.plan.sliced ? Tensor{} : c.q,
                       .kv = c.plan.by_tokens ? Tensor{} : c.Own(c.kv),
                       .kv_norm = c.w.kv_norm,
                       .index_q = c.index_q,
                       .cos_sin = c.own_rope.cos_sin,
                       .norm_eps = c.s.norm_eps,
                       .index_dtype = c.s.index_dtype,
                       .cache = c.own_cache,
                       .append = append};
  if (c.plan.by_tokens) {
    if (t > 0 && (prepare.q || prepare.index_q)) QPrepare(ctx, prepare);
    GatherShares(ctx, keys);
    *site += ShareExchanges(ctx, keys);
  }
  const auto compress = [&](const CompressArgs& call) {
    if (!prepare.append) return Compress(ctx, call);
    prepare.compress[static_cast<size_t>(prepare.num_compress++)] = call;
  };
  const LayerLayout& layer = *c.cache.layer;
  if (c.compresses()) compress(CompressorCall(c, c.w.compressor, layer.main, /*hadamard=*/false, c.values, c.gates));
  if (c.indexes()) {
    const bool hadamard = c.s.index_dtype == IndexDtype::kFp4;
    compress(CompressorCall(c, c.w.indexer.compressor, layer.index, hadamard, c.index_values, c.index_gates));
  }
  LinearArgs expand{.x = c.q_lora,
                    .parts = {{c.of_heads.q_b, c.q.Reshaped({t, c.of_heads.q_b.rows})}},
                    .norm = c.w.q_a_norm,
                    .norm_eps = c.s.norm_eps};
  if (c.indexes()) expand.parts.Add({c.w.indexer.q_b, c.index_q.Reshaped({t, c.w.indexer.q_b.rows})});
  if (c.expands) prepare.expands = &expand;
  if (!c.plan.by_tokens) QPrepare(ctx, prepare);
}

// Output: grouped low rank, then dense; where the plan says so y leaves for the other ranks as the exchange `site`.
void ProjectOut(const ExecContext& ctx, const Call& c, const Tensor& y, int64_t site = kNoSite) {
  const Tensor& heads = c.heads.x;
  if (c.plan.rounds_heads) {
    const Tensor groups = heads.Reshaped({heads.dim(0) * c.s.o_groups, heads.dim(1) / c.s.o_groups});
    RoundActivation(ctx, {.x = groups, .y = groups, .mode = c.s.activation});
  }
  Linear(ctx, {.x = heads,
               .parts = {{c.of_heads.o_a, c.o_lora.x, c.o_lora.blocks}},
               .groups = c.s.o_groups,
               .activation = c.s.activation,
               .x_blocks = c.heads.blocks});
  QuantLinear(ctx, c.s.activation, c.o_lora, {{c.of_heads.o_b, c.plan.o_b, y, {}, site}}, c.rounded);
}

// Which compressed rows a token reads; none where it reads all.
Tensor ChooseRows(const ExecContext& ctx, const Call& c, const AttentionBuffers& b) {
  if (!c.indexes()) return {};
  const Tensor topk_idxs = b.topk_idxs.Head(c.num_own());
  IndexTopk(ctx, {.q = c.index_q, .weights = c.index_weights, .cache = c.own_cache, .topk_idxs = topk_idxs});
  return topk_idxs;
}

// These and its window. Attention rotates back at the query's position.
void Attend(const ExecContext& ctx, const Call& c, const Tensor& topk_idxs) {
  SparseAttention(ctx, {.q = c.q,
                        .kv = c.kv,
                        .sink = c.of_heads.sink,
                        .topk_idxs = topk_idxs,
                        .cache = c.own_cache,
                        .out = c.heads.x.Reshaped(c.q.shape),
                        .cos_sin = c.own_rope.cos_sin,
                        .queries = c.queries,
                        .norm_eps = c.s.norm_eps,
                        .out_blocks = c.heads.blocks});
}

// The same of every slice of the heads by itself, each with its part of the output: y is the sum of the parts.
void AttendBySlices(const ExecContext& ctx, const Call& c, const Tensor& topk_idxs, const Tensor& sums,
                    const Tensor& y) {
  const auto attend = [&](int k, const Tensor& part) {
    Call slice = c;
    slice.of_heads = c.w.slices[static_cast<size_t>(k)];
    QuantLinear(ctx, c.s.activation, c.q_lora, {QueriesOf(slice)}, c.rounded);
    QPrepare(ctx, {.q = c.q, .cos_sin = c.own_rope.cos_sin, .norm_eps = c.s.norm_eps, .cache = c.own_cache});
    Attend(ctx, slice, topk_idxs);
    ProjectOut(ctx, slice, part);
  };
  SumSlices(ctx, static_cast<int>(c.w.slices.size()), sums, y, std::cref(attend));  // a function that allocates nothing
}

}  // namespace

AttentionWeights WithAllHeads(const AttentionWeights& w) {
  AttentionWeights all = w;
  all.q_b = w.whole.q_b, all.sink = w.whole.sink, all.o_a = w.whole.o_a, all.o_b = w.whole.o_b;
  all.slices.clear();
  return all;
}

AttentionSettings WithAllHeads(const AttentionSettings& settings, int num_cuts) {
  AttentionSettings all = settings;
  all.num_heads *= num_cuts;
  all.o_groups *= num_cuts;
  return all;
}

void Attention(const ExecContext& ctx, const AttentionPlan& plan, const AttentionWeights& w, const AttentionSettings& s,
               const RopeAnglesView& rope, const CacheView& cache, const Activation& x, AttentionBuffers& b,
               const Tensor& y, int64_t* site, Appends appends) {
  const bool before = appends == Appends::kBefore && !plan.by_tokens;
  const Call c = Place(ctx, plan, w, s, rope, cache, b, before);
  DSV4_CHECK(appends != Appends::kNever || (cache.num_sequences != cache.num_tokens && !c.compresses()));
  const bool any = c.num_own() > 0;  // a rank may have no token of a short chunk
  if (any) Project(ctx, c, x);
  const GatherSharesArgs keys = plan.by_tokens ? SendKeys(ctx, c, *site) : GatherSharesArgs{};
  if (any && !c.expands) Expand(ctx, c);
  Prepare(ctx, c, before, keys, site);
  const Tensor topk_idxs = any ? ChooseRows(ctx, c, b) : Tensor{};
  if (plan.sliced) {
    AttendBySlices(ctx, c, topk_idxs, b.sums, y);
  } else if (any) {
    Attend(ctx, c, topk_idxs);
  }
  if (appends != Appends::kNever && !before) WindowAppend(ctx, {.kv = c.kv, .cache = cache});
  if (any && !plan.sliced) ProjectOut(ctx, c, c.Own(y), plan.out == Form::kPushedForBridge ? *site : kNoSite);
}

void KeyRows(const ExecContext& ctx, const AttentionPlan& plan, const AttentionWeights& w, const AttentionSettings& s,
             const Activation& x, const AttentionBuffers& b, const Tensor& kv) {
  QuantLinear(ctx, s.activation, x, {{w.kv_proj, plan.kv_proj, kv}}, b.rounded);
}

void AppendRows(const ExecContext& ctx, const AttentionWeights& w, const AttentionSettings& s,
                const RopeAnglesView& rope, const CacheView& cache, const Tensor& kv) {
  QPrepare(ctx, {.kv = kv, .kv_norm = w.kv_norm, .cos_sin = rope.cos_sin, .norm_eps = s.norm_eps, .cache = cache});
  WindowAppend(ctx, {.kv = kv, .cache = cache});
}

}  // namespace dsv4
