#include "model/deepseek_v4/forward.h"

#include "base/str.h"
#include "layers/linear.h"
#include "layers/plan.h"
#include "model/deepseek_v4/rope.h"
#include "ops/embed/embed.h"
#include "ops/gather_ranks/gather_ranks.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/gather_shares/gather_shares.h"
#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_head/hc_head.h"
#include "ops/hc_post/hc_post.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope_angles/rope_angles.h"
#include "ops/sum_ranks/sum_ranks.h"

namespace dsv4::deepseek_v4 {

namespace {

// A step's view of the buffers: the first T rows.
struct Frame {
  Tensor streams, x, y, post, comb;
  RopeAnglesView plain, compress;
};

template <typename T>
Tensor ViewOf(const std::vector<T>& v, DType dtype) {
  return {const_cast<T*>(v.data()), dtype, {static_cast<int64_t>(v.size())}};
}

Frame MakeFrame(const ExecContext& ctx, const Model& model, const StepView& step, Activations& a) {
  const int64_t t = step.num_tokens();
  Frame f{.streams = a.streams.Head(t), .x = a.x.Head(t), .y = a.y.Head(t), .post = a.post.Head(t),
          .comb = a.comb.Head(t)};
  f.plain = {model.weights.plain_frequencies, a.plain_cos_sin.Head(t)};
  f.compress = {model.weights.compress_frequencies, a.compress_cos_sin.Head(t)};
  for (const RopeAnglesView& rope : {f.plain, f.compress}) {
    RopeAngles(ctx, {.positions = step.positions, .frequencies = rope.frequencies, .cos_sin = rope.cos_sin});
  }
  return f;
}

// Writes the output of the sublayer before, if it is pending, into the streams; reads them into f.x through the next
// site's mixes; norms f.x. Where the plan wants blocks besides, they lie in `room`.
Activation NextSite(const ExecContext& ctx, const Config& c, const HcWeights& w, const Tensor& norm,
                    const Activation& pending, const Frame& f, Form form, const Room& room, int64_t* site) {
  const bool sums = pending.form == Form::kPartsForBridge || pending.form == Form::kSlotsForBridge;
  uint8_t* blocks = form == Form::kFloatsAndBlocks ? room.Blocks(f.x.dim(0), f.x.dim(1)) : nullptr;
  HcBridge(ctx, {.streams = f.streams,
                 .y = pending.x,
                 .fn = w.fn,
                 .base = w.base,
                 .scale = w.scale,
                 .iters = c.hc_sinkhorn_iters,
                 .eps = c.hc_eps,
                 .norm_eps = c.rms_norm_eps,
                 .norm = norm,
                 .x = f.x,
                 .post = f.post,
                 .comb = f.comb,
                 .sums_ranks = sums,
                 .site = *site,
                 .x_blocks = blocks});
  if (sums) *site += 1;
  return {form, f.x, blocks};
}

// A sublayer's output where every rank has a part of it: the sum, or everybody's rows. `site` counts the pass's
// exchanges.
void JoinParts(const ExecContext& ctx, const Activation& y, int64_t* site) {
  if (y.form == Form::kRankParts) {
    SumRanks(ctx, {.y = y.x, .site = *site});
    *site += SumExchanges(ctx, y.x.num_elements());
  } else if (y.form == Form::kRankRows) {
    GatherShares(ctx, {.y = y.x, .site = *site});
    *site += ShareExchanges(ctx, y.x);
  }
}

AttentionSettings SettingsOf(const Config& c, const NumericsModes& modes) {
  return {.num_heads = c.num_heads,
          .head_dim = c.head_dim,
          .o_groups = c.o_groups,
          .index_heads = c.index_heads,
          .index_head_dim = c.index_head_dim,
          .norm_eps = c.rms_norm_eps,
          .activation = modes.activation,
          .index_dtype = modes.index};
}

// `pending`: the output of the layer before, or none. Returns this layer's own, for the next one.
Activation DecoderLayer(const ExecContext& ctx, const Model& model, int64_t l, const LayerPlan& plan,
                        const StepView& step, const Frame& f, const Activation& pending, int64_t* site,
                        Activations& a) {
  const Config& c = model.config;
  const LayerWeights& w = model.weights.layers[static_cast<size_t>(l)];
  const CacheView cache{.layer = &model.kv_layout.layers[static_cast<size_t>(l)], .window = c.window,
                        .sequences = step.sequences, .num_sequences = step.num_sequences,
                        .sequence_of = step.sequence_of, .positions = step.positions.i64(),
                        .num_tokens = step.num_tokens()};
  const MoeSettings moe{
      .scaling_factor = c.routed_scaling_factor, .limit = c.swiglu_limit, .activation = model.modes.activation};
  const RopeAnglesView& rope = c.kind(l) == LayerKind::kSliding ? f.plain : f.compress;

  const Activation x = NextSite(ctx, c, w.hc_attn, w.attn_norm, pending, f, plan.attention.x, a.attention.rounded,
                                site);
  AttentionWeights all;
  const LayerShape taken = ShapeFor(plan.attention, ShapeOfLayer(model, l), &all);
  Attention(ctx, plan.attention, *taken.attention, taken.settings, rope, cache, x, a.attention, f.y);
  const Activation heads{plan.attention.out, f.y, nullptr};
  JoinParts(ctx, heads, site);
  const Activation x2 = NextSite(ctx, c, w.hc_ffn, w.ffn_norm, /*pending=*/heads, f, plan.moe.x, a.moe.rounded, site);
  const Activation experts = Moe(ctx, plan.moe, w.moe, moe, step.tokens, x2, a.moe, f.y);
  JoinParts(ctx, experts, site);
  return experts;
}

}  // namespace

KvSpec MakeKvSpec(const Config& c, const NumericsModes& modes) {
  return {.compress_ratios = c.compress_ratios, .window = c.window, .head_dim = c.head_dim, .rope_dim = c.rope_dim,
          .index_head_dim = c.index_head_dim, .kv_dtype = modes.kv, .index_dtype = modes.index};
}

LayerShape ShapeOfLayer(const Model& m, int64_t l) {
  const Config& c = m.config;
  const LayerWeights& w = m.weights.layers[static_cast<size_t>(l)];
  return {.attention = &w.attn,
          .moe = &w.moe,
          .settings = SettingsOf(c, m.modes),
          .cache = m.kv_layout.layers[static_cast<size_t>(l)],
          .window = c.window,
          .rope_dim = c.rope_dim,
          .streams = c.hc_mult,
          .dim = c.hidden_size,
          .mixes = w.hc_attn.fn,
          .experts_per_token = c.experts_per_token,
          .is_last = l + 1 == c.num_layers,
          .num_ranks = c.num_ranks};
}

void PlanModel(const ExecContext& ctx, Model* model) {
  model->plans.clear();
  for (int64_t l = 0; l < static_cast<int64_t>(model->weights.layers.size()); ++l)
    model->plans.push_back(PlanLayer(ctx, ShapeOfLayer(*model, l)));
}

Model MakeModel(Config config, Weights weights, NumericsModes modes) {
  Model m{.config = std::move(config), .weights = std::move(weights), .modes = modes};
  m.kv_layout = MakeKvLayout(MakeKvSpec(m.config, modes));
  PlanModel({}, &m);
  if (m.weights.plain_frequencies) return m;  // synthetic weights bring them along
  // Freed with the weights.
  struct Frequencies {
    std::vector<float> plain, compress;
    std::shared_ptr<const void> storage;
  };
  auto own = std::make_shared<Frequencies>(
      Frequencies{PlainRopeFrequencies(m.config), CompressRopeFrequencies(m.config), m.weights.storage});
  m.weights.plain_frequencies = ViewOf(own->plain, DType::kF32);
  m.weights.compress_frequencies = ViewOf(own->compress, DType::kF32);
  m.weights.storage = std::move(own);
  return m;
}

void Forward(const ExecContext& ctx, const Model& model, const StepView& step, Activations& a, const Tensor& logits,
             const LayerObserver& observer) {
  const Config& c = model.config;
  const Weights& w = model.weights;
  const Frame f = MakeFrame(ctx, model, step, a);

  Embed(ctx, {.tokens = step.tokens, .table = w.embed, .streams = f.streams});
  const auto write_output = [&] { HcPost(ctx, {.y = f.y, .post = f.post, .comb = f.comb, .streams = f.streams}); };
  const auto step_class = static_cast<size_t>(ClassOf(ctx.regime, step.num_tokens()));
  Activation pending;
  int64_t site = 0;
  for (int64_t l = 0; l < c.num_layers; ++l) {
    LayerPlan plan = model.plans[static_cast<size_t>(l)][step_class];
    if (observer && plan.moe.out == Form::kSlots) plan.moe.out = Form::kFloats;
    if (observer && c.num_ranks > 1) plan.moe.out = Form::kRankParts;
    pending = DecoderLayer(ctx, model, l, plan, step, f, pending, &site, a);
    if (observer) {
      pending = {};
      write_output();
      observer(l, f.streams);
    }
  }

  const int64_t r = step.logit_rows.dim(0);
  if (r == 0) return AdvanceExchanges(ctx, site);
  if (pending) write_output();
  const Tensor out_streams = a.out_streams.Head(r), out = a.out.Head(r);
  GatherRows(ctx, {.x = f.streams, .rows = step.logit_rows, .out = out_streams});
  HcHead(ctx, {.streams = out_streams, .fn = w.hc_head.fn, .base = w.hc_head.base, .scale = w.hc_head.scale,
               .eps = c.hc_eps, .norm_eps = c.rms_norm_eps, .out = out});
  RmsNorm(ctx, {.x = out, .weight = w.norm, .y = out, .eps = c.rms_norm_eps});
  const Tensor columns = c.num_ranks > 1 ? a.rank_logits.Head(r) : logits;
  const ActivationDtype mode = model.modes.activation;
  QuantLinear(ctx, mode, out, {{w.head, InputOf(ctx, mode, w.head), columns}}, a.rounded_out);
  GatherRanks(ctx, {.x = columns, .y = logits, .site = site});
  AdvanceExchanges(ctx, site + RankExchanges(ctx, columns.num_elements()));
}

std::string ExchangeName(const Config& config, int64_t site) {
  if (site >= 2 * config.num_layers) return "logits";
  return StrCat("layer ", site / 2, ", ", site % 2 == 0 ? "attention" : "experts");
}

}  // namespace dsv4::deepseek_v4
