#include "model/deepseek_v4/pass/forward.h"

#include <algorithm>

#include "base/str.h"
#include "device/exchange.h"
#include "layers/plan.h"
#include "model/deepseek_v4/config/rope.h"
#include "model/deepseek_v4/pass/decoder_layer.h"
#include "model/deepseek_v4/pass/draft.h"
#include "ops/count_experts/count_experts.h"
#include "ops/embed/embed.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/gather_shares/gather_shares.h"
#include "ops/hc_post/hc_post.h"
#include "ops/rope_angles/rope_angles.h"

namespace dsv4::deepseek_v4 {

namespace {

template <typename T>
Tensor ViewOf(const std::vector<T>& v, DType dtype) {
  return {const_cast<T*>(v.data()), dtype, {static_cast<int64_t>(v.size())}};
}

// The step's rows as layers of both kinds of RoPE see them.
struct StepRows {
  LayerRows plain, compress;
};

StepRows RowsOf(const ExecContext& ctx, const Model& model, const StepView& step, Activations& a) {
  const int64_t t = step.num_tokens();
  const int64_t spare = model.kv_layout.layers.front().window_slots - model.kv_layout.window;
  const LayerRows rows{.tokens = step.tokens,
                       .cache = {.window = model.config.window,
                                 .sequences = step.sequences,
                                 .num_sequences = step.num_sequences,
                                 .sequence_of = step.sequence_of,
                                 .positions = step.positions.i64(),
                                 .num_tokens = t},
                       .rope = {},
                       .appends = step.most_each <= 1 + spare ? Appends::kBefore : Appends::kAfter};
  StepRows both{rows, rows};
  both.plain.rope = {model.weights.plain_frequencies, a.plain_cos_sin.Head(t)};
  both.compress.rope = {model.weights.compress_frequencies, a.compress_cos_sin.Head(t)};
  for (const RopeAnglesView& rope : {both.plain.rope, both.compress.rope}) {
    RopeAngles(ctx, {.positions = step.positions, .frequencies = rope.frequencies, .cos_sin = rope.cos_sin});
  }
  return both;
}

// Of ranks that have own rows: all rows of what the pass hands on.
void GatherStreams(const ExecContext& ctx, const Config& c, const Frame& f, int64_t* site) {
  *site = SiteAt(PlaceOfLogits(c), *site);
  GatherSharesArgs shares{.site = *site};
  shares.AddRows(ctx, f.streams);
  shares.AddRows(ctx, f.main_hidden);
  GatherShares(ctx, shares);
  *site += ShareExchanges(ctx, shares);
}

// The logits of `rows`.
void LogitsOfRows(const ExecContext& ctx, const Model& model, const Tensor& rows, const Frame& f, const Tensor& logits,
                  int64_t* site, Activations& a) {
  const int64_t r = rows.dim(0);
  const Tensor out_streams = a.out_streams.Head(r), out = a.out.Head(r);
  GatherRows(ctx, {.x = f.streams, .rows = rows, .out = out_streams});
  ReadStreams(ctx, model, model.weights.hc_head, out_streams, out);
  LogitsOf(ctx, model, out, model.weights.norm, model.weights.head, logits, site, a);
}

// The logits of the rows that the step asks for, as many at a time as `logits` has rows.
void StepLogits(const ExecContext& ctx, const Model& model, const StepView& step, const Frame& f, const Tensor& logits,
                const TakeLogits& take, int64_t* site, Activations& a) {
  const int64_t rows = step.logit_rows.dim(0);
  for (int64_t done = 0; done < rows;) {
    const int64_t n = std::min(rows - done, logits.dim(0));
    LogitsOfRows(ctx, model, step.logit_rows.Rows(done, n), f, logits.Head(n), site, a);
    if (take) take(done, n);
    done += n;
  }
}

// Layers whose choices lie alike count together.
void CountChosen(const ExecContext& ctx, const Model& model, size_t step_class, int64_t num_tokens,
                 const Activations& a) {
  if (!model.expert_chosen) return;
  const int64_t num_layers = model.config.num_layers, e = model.config.num_experts, slots = a.expert_ids.dim(2);
  const auto slots_of = [&](int64_t l) {
    return slots - (model.plans[static_cast<size_t>(l)][step_class].moe.shared_is_routed ? 0 : 1);
  };
  for (int64_t first = 0, end = 0; first < num_layers; first = end) {
    while (end < num_layers && slots_of(end) == slots_of(first)) ++end;
    const int64_t stride = a.expert_ids.dim(1) * slots;
    // Fetched ones are counted where they are fetched.
    bool fetches = false;
    for (int64_t l = first; l < end; ++l) {
      const auto at = static_cast<size_t>(l);
      fetches = fetches ||
                FetchesExperts(model.plans[at][step_class].moe, model.weights.layers[at].moe, num_tokens * slots_of(l));
    }
    Tensor passes;
    if (!fetches) passes = {model.expert_passes.i64() + first * e, DType::kI64, {end - first, e}};
    CountExperts(ctx, {.experts = a.expert_ids.i32() + first * stride,
                       .layer_stride = stride,
                       .num_ids = num_tokens * slots_of(first),
                       .chosen = {model.expert_chosen.i64() + first * e, DType::kI64, {end - first, e}},
                       .passes = passes});
  }
}

}  // namespace

KvSpec MakeKvSpec(const Config& c, const NumericsModes& modes) {
  return {.compress_ratios = c.compress_ratios,
          .window = c.window,
          .head_dim = c.head_dim,
          .rope_dim = c.rope_dim,
          .index_head_dim = c.index_head_dim,
          .kv_dtype = modes.kv,
          .index_dtype = modes.index,
          .hidden_width = c.draft.is_mtp() ? c.hc_mult * c.hidden_size : 0};
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
          .is_last = l + 1 == c.num_layers || l + 1 == c.num_layers + c.draft.stages,
          .num_cuts = c.num_cuts(),
          .rank_invariant = c.fixed_cuts > 0};
}

void PlanModel(const ExecContext& ctx, Model* model) {
  model->plans.clear();
  model->attn_by_tokens.clear();
  for (int64_t l = 0; l < static_cast<int64_t>(model->weights.layers.size()); ++l) {
    model->plans.push_back(PlanLayer(ctx, ShapeOfLayer(*model, l)));
    if (model->config.num_cuts() > 1)
      model->attn_by_tokens.push_back(WithAllHeads(model->weights.layers[static_cast<size_t>(l)].attn));
  }
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
             const TakeLogits& take, const LayerObserver& observer) {
  const Config& c = model.config;
  const StepRows rows = RowsOf(ctx, model, step, a);
  Frame f = FrameOf(a.streams.Head(step.num_tokens()), a);
  if (c.draft.is_dspark() && step.keeps_drafts) f.main_hidden = a.draft.main_hidden.Head(step.num_tokens());
  const auto step_class = static_cast<size_t>(ClassOf(ctx.regime, step.num_tokens()));
  const bool by_tokens = model.plans.front()[step_class].attention.by_tokens;
  if (by_tokens) f.own = RowsOfRank(ctx, step.num_tokens());

  Embed(ctx, {.tokens = f.Own(step.tokens), .table = model.weights.embed, .streams = f.Own(f.streams)});
  const auto write_output = [&] {
    HcPost(ctx, {.y = f.Own(f.y), .post = f.Own(f.post), .comb = f.Own(f.comb), .streams = f.Own(f.streams)});
  };
  Activation pending;
  int64_t site = 0;
  const auto gather_streams = [&] {
    if (by_tokens) GatherStreams(ctx, c, f, &site);
  };
  for (int64_t l = 0; l < c.num_layers; ++l) {
    if (step.stop != nullptr && step.stop->wanted->load(std::memory_order_relaxed)) {
      step.stop->ended = true;
      return;
    }
    const LayerPlan& planned = model.plans[static_cast<size_t>(l)][step_class];
    const LayerPlan plan = observer ? Observed(planned) : planned;
    const bool sliding = c.kind(l) == LayerKind::kSliding;
    pending = DecoderLayer(ctx, model, l, plan, sliding ? rows.plain : rows.compress, f, pending, &site, a);
    if (observer) {
      pending = {};
      write_output();
      gather_streams();
      observer(l, f.streams);
    }
  }
  CountChosen(ctx, model, step_class, step.num_tokens(), a);

  const bool wants_logits = step.logit_rows.dim(0) > 0, drafts = c.draft.stages > 0 && step.keeps_drafts;
  if (pending && (wants_logits || drafts)) write_output();
  KeepMean(ctx, c, c.num_layers - 1, f);
  if (wants_logits || drafts) gather_streams();
  if (wants_logits) StepLogits(ctx, model, step, f, logits, take, &site, a);
  if (drafts) KeepDraftRows(ctx, model, step, f, a);
  AdvanceExchanges(ctx, site);
}

std::string ExchangeName(const Config& config, int64_t site) {
  const int64_t place = PlaceOf(site), layer = place / 2;
  if (place >= PlaceOfLogits(config)) return "logits";
  const bool drafts = layer >= config.num_layers;
  return StrCat(drafts ? "draft layer " : "layer ", drafts ? layer - config.num_layers : layer, ", ",
                place % 2 == 0 ? "attention" : "experts");
}

}  // namespace dsv4::deepseek_v4
