#include "layers/plan.h"

#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/linear/linear.h"
#include "ops/q_prepare/q_prepare.h"
#include "ops/router/router.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4 {

namespace {

// Whether a linear of this weight takes blocks in this mode.
bool ReadsBlocks(const ExecContext& ctx, ActivationDtype mode, const QuantTensor& w) {
  return !RoundsInput(mode, w) && LinearTakesBlocks(ctx, w);
}

// Of what a bridge makes for a reader.
Form BridgeForm(const ExecContext& ctx, const LayerShape& l, const QuantTensor& reader) {
  const bool blocks = ReadsBlocks(ctx, l.settings.activation, reader) && HcBridgeWritesBlocks(ctx, l.streams, l.dim);
  return blocks ? Form::kFloatsAndBlocks : Form::kFloats;
}

// Prompts of several ranks: then a rank's heads fill no tensor core's tile, and ranks keep the streams of their own
// tokens only.
bool ByTokens(const ExecContext& ctx, const LayerShape& l) {
  return l.num_cuts > 1 && ctx.regime != Regime::kDecode && l.attention->whole.q_b;
}

AttentionPlan PlanAttention(const ExecContext& ctx, StepClass step, const LayerShape& layer) {
  const bool by_tokens = ByTokens(ctx, layer);
  AttentionWeights all;
  const LayerShape l = ShapeFor({.by_tokens = by_tokens}, layer, &all);
  const AttentionWeights& w = *l.attention;
  const IndexerWeights& index = w.indexer;
  const AttentionSettings& s = l.settings;
  const ActivationDtype mode = s.activation;
  AttentionPlan p{.x = BridgeForm(ctx, l, w.q_a),
                  .q_a = InputOf(ctx, mode, w.q_a),
                  .kv_proj = InputOf(ctx, mode, w.kv_proj),
                  .index_weights = InputOf(ctx, mode, index.weights_proj),
                  .q_b = InputOf(ctx, mode, w.q_b),
                  .index_q_b = InputOf(ctx, mode, index.q_b),
                  .o_b = InputOf(ctx, mode, w.o_b),
                  .by_tokens = by_tokens};
  const bool as_is = p.q_b == Input::kAsIs && (!index.q_b || p.index_q_b == Input::kAsIs);
  p.sliced = l.rank_invariant && !by_tokens;
  p.norms_along = as_is && !p.sliced && LinearNormalises(ctx, w.q_b) &&
                  (!index.q_b || LinearNormalises(ctx, index.q_b));
  p.expands = !p.sliced && mode == ActivationDtype::kNative && QPrepareExpands(ctx, ExpandShapeOf(l, MostRows(step)));

  // In long prompts on a GPU attention takes queries as q_b writes them, and makes what o_a reads.
  const bool half = SparseAttentionWritesBlocks(ctx, AttentionShapeOf(l));
  if (half && ReadsBlocks(ctx, mode, w.q_b)) p.queries = Form::kQueries;
  if (half && ReadsBlocks(ctx, mode, w.o_a)) p.heads = Form::kBlocks;
  if (p.heads == Form::kBlocks && LinearWritesBlocks(ctx, w.o_a, s.o_groups) && ReadsBlocks(ctx, mode, w.o_b))
    p.o_lora = Form::kBlocks;
  // The official recipe keeps o_a's input unrounded (docs/dev/model.md); NVFP4 activations round every quantised
  // linear's.
  if (l.num_cuts > 1) {
    const bool bridge = !p.sliced && HcBridgeSumsRanks(ctx, MostRows(step), l.streams, l.dim, l.mixes);
    const bool pushes = bridge && p.o_b == Input::kAsIs && LinearPushes(ctx, MostRows(step), w.o_b);
    p.out = by_tokens ? Form::kRankRows
            : pushes  ? Form::kPushedForBridge
            : bridge  ? Form::kPartsForBridge
                      : Form::kRankParts;
  }
  p.rounds_heads = mode == ActivationDtype::kNvfp4 && w.o_a.quantised();
  return p;
}

MoePlan PlanMoe(const ExecContext& ctx, StepClass step, const LayerShape& l) {
  const MoeWeights& w = *l.moe;
  const ActivationDtype mode = l.settings.activation;
  const ExpertWeights& expert = w.experts.front();
  MoePlan p{.x = BridgeForm(ctx, l, w.shared.gate),
            .gate = InputOf(ctx, mode, w.shared.gate),
            .up = InputOf(ctx, mode, w.shared.up),
            .down = InputOf(ctx, mode, w.shared.down)};
  // Decode rows on a GPU: that saves three launches and keeps more bytes in flight.
  p.shared_is_routed = ctx.device != DeviceKind::kCpu && ctx.regime == Regime::kDecode && SharedLooksRouted(w);
  p.router_multiplies = p.shared_is_routed && RouterMultiplies(ctx, MostRows(step), w.router, l.experts_per_token);
  if (ReadsBlocks(ctx, mode, w.shared.down)) p.hidden = Form::kBlocks;
  p.experts_read_blocks = p.x == Form::kFloatsAndBlocks && !RoundsInput(mode, expert.gate);
  const auto num_experts = static_cast<int64_t>(w.experts.size());
  if (!p.shared_is_routed && ExpertsRunAsPrompt(ctx, expert, mode, num_experts)) p.fetch_from = 2 * num_experts;
  p.by_tokens = ByTokens(ctx, l);
  p.sliced = l.rank_invariant;
  if (p.by_tokens) {
    const bool halves = p.experts_read_blocks && ReadsBlocks(ctx, mode, w.shared.up) &&
                        ExpertsReadBlocks(ctx, expert, mode, num_experts);
    p.gathered = halves ? Form::kBlocks : Form::kFloats;
    if (!halves) p.x = Form::kFloats, p.experts_read_blocks = false;
    p.out = Form::kRowParts;
    return p;
  }
  if (p.sliced) {
    p.out = Form::kRankParts;
    return p;
  }
  const int64_t rows = MostRows(step), slots = 1 + l.experts_per_token;
  const bool adds = p.shared_is_routed && !l.is_last && HcBridgeAddsSlots(ctx, rows, l.streams, l.dim, slots);
  if (l.num_cuts == 1) {
    if (adds) p.out = Form::kSlots;
  } else if (!l.is_last && HcBridgeSumsRanks(ctx, rows, l.streams, l.dim, l.mixes)) {
    p.out = adds ? Form::kSlotsForBridge : Form::kPartsForBridge;
  } else {
    p.out = Form::kRankParts;
  }
  return p;
}

}  // namespace

StepClass ClassOf(Regime regime, int64_t num_tokens) {
  switch (regime) {
    case Regime::kDecode:
      return num_tokens == 1                   ? StepClass::kOneRow
             : num_tokens <= kMaxClusterTokens ? StepClass::kFewRows
                                               : StepClass::kDecode;
    case Regime::kPrompt:
      return StepClass::kPrompt;
    case Regime::kLongPrompt:
      return StepClass::kLongPrompt;
  }
  return StepClass::kDecode;
}

Regime RegimeOf(StepClass step) {
  return step == StepClass::kPrompt       ? Regime::kPrompt
         : step == StepClass::kLongPrompt ? Regime::kLongPrompt
                                          : Regime::kDecode;
}

int64_t LeastRows(StepClass step) {
  return step == StepClass::kDecode ? kMaxClusterTokens + 1 : step == StepClass::kFewRows ? 2 : 1;
}

int64_t MostRows(StepClass step) {
  return step == StepClass::kOneRow ? 1 : step == StepClass::kFewRows ? kMaxClusterTokens : kMaxTokensOnGpu;
}

ExecContext ContextOf(const ExecContext& ctx, StepClass step) {
  ExecContext at = ctx;
  at.regime = RegimeOf(step);
  return at;
}

LayerPlan PlanLayer(const ExecContext& ctx, StepClass step, const LayerShape& layer) {
  const ExecContext at = ContextOf(ctx, step);
  return {.attention = PlanAttention(at, step, layer), .moe = PlanMoe(at, step, layer)};
}

LayerPlans PlanLayer(const ExecContext& ctx, const LayerShape& layer) {
  LayerPlans plans;
  for (const StepClass step : kStepClasses) plans[static_cast<size_t>(step)] = PlanLayer(ctx, step, layer);
  return plans;
}

LayerPlan Observed(const LayerPlan& plan) {
  LayerPlan observed = plan;
  Form& out = observed.moe.out;
  if (out == Form::kSlots) out = Form::kFloats;
  if (out == Form::kSlotsForBridge || out == Form::kPartsForBridge) out = Form::kRankParts;
  return observed;
}

LayerShape ShapeFor(const AttentionPlan& plan, const LayerShape& layer, AttentionWeights* all) {
  if (!plan.by_tokens) return layer;
  *all = WithAllHeads(*layer.attention);
  LayerShape l = layer;
  l.attention = all;
  l.settings = WithAllHeads(layer.settings, layer.num_cuts);
  return l;
}

AttentionShape AttentionShapeOf(const LayerShape& l) {
  return {.heads = l.settings.num_heads, .rope_dim = l.rope_dim, .layer = l.cache, .window = l.window};
}

ExpandShape ExpandShapeOf(const LayerShape& l, int64_t num_tokens) {
  const bool indexes = l.cache.index.ratio != 0;
  ExpandShape s{.num_tokens = num_tokens,
                .append = true,
                .heads = l.settings.num_heads,
                .head_dim = l.settings.head_dim,
                .rope_dim = l.rope_dim,
                .num_compress = (l.cache.main.ratio != 0 ? 1 : 0) + (indexes ? 1 : 0),
                .q_b = l.attention->q_b};
  if (indexes)
    s.index_heads = l.settings.index_heads, s.index_head_dim = l.settings.index_head_dim,
    s.index_q_b = l.attention->indexer.q_b;
  return s;
}

bool SharedLooksRouted(const MoeWeights& w) {
  const auto alike = [](const QuantTensor& a, const QuantTensor& b) {
    return ExpertsTake(a.format, b.format) && a.rows == b.rows && a.cols == b.cols;
  };
  const ExpertWeights& e = w.experts.front();
  return alike(e.gate, w.shared.gate) && alike(e.up, w.shared.up) && alike(e.down, w.shared.down);
}

}  // namespace dsv4
