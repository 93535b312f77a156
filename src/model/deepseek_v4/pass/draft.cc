#include "model/deepseek_v4/pass/draft.h"

#include <algorithm>

#include "base/check.h"
#include "device/exchange.h"
#include "layers/linear.h"
#include "layers/plan.h"
#include "ops/block_rows/block_rows.h"
#include "ops/embed/embed.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/hc_post/hc_post.h"
#include "ops/previous_rows/previous_rows.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope_angles/rope_angles.h"
#include "ops/step_before/step_before.h"
#include "ops/stream_add/stream_add.h"
#include "ops/stream_mean/stream_mean.h"

namespace dsv4::deepseek_v4 {

namespace {

// Calls take(first, count) for runs of at most kDraftRows of `t` rows.
template <typename Take>
void InRuns(int64_t t, const Take& take) {
  for (int64_t first = 0; first < t; first += kDraftRows) take(first, std::min(kDraftRows, t - first));
}

const LayerPlan& PlanOf(const ExecContext& ctx, const Model& model, int64_t stage, int64_t num_tokens) {
  return model.plans[static_cast<size_t>(model.config.num_layers + stage)]
                    [static_cast<size_t>(ClassOf(ctx.regime, num_tokens))];
}

RopeAnglesView AnglesOf(const ExecContext& ctx, const Model& model, const Tensor& positions, Activations& a) {
  const RopeAnglesView rope{model.weights.plain_frequencies, a.plain_cos_sin.Head(positions.dim(0))};
  RopeAngles(ctx, {.positions = positions, .frequencies = rope.frequencies, .cos_sin = rope.cos_sin});
  return rope;
}

// The module's own matrices, if they differ from the model's.
const QuantTensor& EmbedOf(const Weights& w) { return w.draft.embed ? w.draft.embed : w.embed; }
const QuantTensor& HeadOf(const Weights& w) { return w.draft.head ? w.draft.head : w.head; }

void Project(const ExecContext& ctx, const Model& model, const QuantTensor& w, const Tensor& x, const Tensor& y,
             const Room& scratch) {
  const ActivationDtype mode = model.modes.activation;
  QuantLinear(ctx, mode, x, {{w, InputOf(ctx, mode, w), y}}, scratch);
}

// The same of x's rows normalised, where that is possible by the same launch; x is scratch.
void ProjectNormed(const ExecContext& ctx, const Model& model, const QuantTensor& w, const Tensor& norm,
                   const Tensor& x, const Tensor& y, const Room& scratch) {
  const ActivationDtype mode = model.modes.activation;
  const Input input = InputOf(ctx, mode, w);
  NormedQuantLinear(ctx, mode, x, norm, model.config.rms_norm_eps, input == Input::kAsIs && LinearNormalises(ctx, w),
                    {{w, input, y}}, scratch);
}

// ---- MTP ----

// The rows of a step, each at the position before its token's.
LayerRows RowsBefore(const ExecContext& ctx, const Model& model, const StepView& step, Activations& a) {
  const int64_t t = step.num_tokens();
  const Tensor positions = a.draft.positions.Head(t);
  auto* before = static_cast<SequenceView*>(a.draft.sequences.data);
  StepBefore(ctx, {.positions = step.positions,
                   .sequences = step.sequences,
                   .num_sequences = step.num_sequences,
                   .positions_before = positions,
                   .before = before});
  return {.tokens = step.tokens,
          .cache = {.window = model.config.window,
                    .sequences = before,
                    .num_sequences = step.num_sequences,
                    .sequence_of = step.sequence_of,
                    .positions = positions.i64(),
                    .num_tokens = t},
          .rope = AnglesOf(ctx, model, positions, a)};
}

void ShiftStreams(const ExecContext& ctx, const Model& model, const StepView& step, const Tensor& x, const Tensor& y) {
  PreviousRows(ctx, {.x = x,
                     .y = y,
                     .sequences = step.sequences,
                     .num_sequences = step.num_sequences,
                     .offset = model.kv_layout.hidden_offset,
                     .slots = model.kv_layout.hidden_slots});
}

// The block's input streams [t, H, D], from its tokens and the model's streams `from` of the position before (scratch).
Tensor MtpInput(const ExecContext& ctx, const Model& model, const Tensor& tokens, const Tensor& from, Activations& a) {
  const Config& c = model.config;
  const DraftWeights& w = model.weights.draft;
  const int64_t t = tokens.dim(0), h = c.hc_mult, d = c.hidden_size;
  const Tensor x = a.x.Head(t), e = a.y.Head(t), streams = a.draft.streams.Head(t);
  Embed(ctx, {.tokens = tokens, .table = EmbedOf(model.weights), .streams = x.Reshaped({t, 1, d})});
  ProjectNormed(ctx, model, w.embed_proj, w.embed_norm, x, e, a.draft.rounded);
  ProjectNormed(ctx, model, w.hidden_proj, w.hidden_norm, from.Reshaped({t * h, d}), streams.Reshaped({t * h, d}),
                a.draft.rounded);
  StreamAdd(ctx, {.y = e, .streams = streams});
  return streams;
}

void KeepMtpRows(const ExecContext& ctx, const Model& model, const StepView& step, const Frame& f, Activations& a) {
  const Config& c = model.config;
  const LayerWeights& w = model.weights.layers[static_cast<size_t>(c.num_layers)];
  const int64_t t = step.num_tokens();
  const AttentionPlan& plan = PlanOf(ctx, model, 0, t).attention;
  LayerRows rows = RowsBefore(ctx, model, step, a);
  rows.cache.layer = &model.kv_layout.layers[static_cast<size_t>(c.num_layers)];
  ShiftStreams(ctx, model, step, f.streams, f.streams);
  const Tensor kv = a.attention.kv.Head(t);
  InRuns(t, [&](int64_t first, int64_t count) {
    const Tensor streams = MtpInput(ctx, model, step.tokens.Rows(first, count), f.streams.Rows(first, count), a);
    int64_t site = 0;  // none is taken
    const Activation x = NextSite(ctx, c, w.hc_attn, w.attn_norm, {}, FrameOf(streams, a), plan.x, a.attention.rounded,
                                  &site);
    KeyRows(ctx, plan, w.attn, SettingsOf(c, model.modes), x, a.attention, kv.Rows(first, count));
  });
  AppendRows(ctx, w.attn, SettingsOf(c, model.modes), rows.rope, rows.cache, kv);
}

void DraftMtp(const ExecContext& ctx, const Model& model, const StepView& step, Activations& a, const Tensor& logits) {
  const int64_t s = step.num_tokens();
  const LayerRows rows = RowsBefore(ctx, model, step, a);
  const Tensor from = a.streams.Head(s);
  ShiftStreams(ctx, model, step, {}, from);
  const Frame f = FrameOf(MtpInput(ctx, model, step.tokens, from, a), a);
  int64_t site = 0;
  DecoderLayer(ctx, model, model.config.num_layers, PlanOf(ctx, model, 0, s), rows, f, {}, &site, a);
  HcPost(ctx, {.y = f.y, .post = f.post, .comb = f.comb, .streams = f.streams});
  // What the next place takes for the model's streams at this one's token.
  ShiftStreams(ctx, model, step, f.streams, {});
  const Tensor out = a.out.Head(s);
  ReadStreams(ctx, model, model.weights.draft.hc_head, f.streams, out);
  LogitsOf(ctx, model, out, model.weights.draft.norm, HeadOf(model.weights), logits, &site, a);
  AdvanceExchanges(ctx, site);
}

// ---- DSpark ----

void KeepDsparkRows(const ExecContext& ctx, const Model& model, const StepView& step, const Frame& f, Activations& a) {
  const Config& c = model.config;
  const DraftWeights& w = model.weights.draft;
  const int64_t t = step.num_tokens();
  const AttentionSettings settings = SettingsOf(c, model.modes);
  const RopeAnglesView rope = AnglesOf(ctx, model, step.positions, a);
  InRuns(t, [&](int64_t first, int64_t count) {
    Project(ctx, model, w.main_proj, f.main_hidden.Rows(first, count), f.y.Rows(first, count), a.draft.rounded);
  });
  RmsNorm(ctx, {.x = f.y, .weight = w.main_norm, .y = f.x, .eps = c.rms_norm_eps});
  for (int64_t stage = 0; stage < c.draft.stages; ++stage) {
    const auto l = static_cast<size_t>(c.num_layers + stage);
    const AttentionWeights& attn = model.weights.layers[l].attn;
    const CacheView cache{.layer = &model.kv_layout.layers[l],
                          .window = c.window,
                          .sequences = step.sequences,
                          .num_sequences = step.num_sequences,
                          .sequence_of = step.sequence_of,
                          .positions = step.positions.i64(),
                          .num_tokens = t};
    const Tensor kv = a.attention.kv.Head(t);
    KeyRows(ctx, PlanOf(ctx, model, stage, t).attention, attn, settings, f.x, a.attention, kv);
    AppendRows(ctx, attn, settings, rope, cache, kv);
  }
}

// The block of every sequence: a.draft.hidden and a.draft.base, place by place.
void DraftBlock(const ExecContext& ctx, const Model& model, const StepView& step, Activations& a) {
  const Config& c = model.config;
  const int64_t s = step.num_tokens(), b = c.draft.block, t = s * b;
  DraftBuffers& draft = a.draft;
  const Tensor tokens = draft.tokens.Head(t), positions = draft.positions.Head(t), last = draft.last.Head(t);
  const Tensor sequence_of = draft.sequence_of.Head(t), by_place = draft.by_place.Head(t);
  auto* blocks = static_cast<SequenceView*>(draft.sequences.data);
  BlockRows(ctx, {.step_tokens = step.tokens,
                  .step_positions = step.positions,
                  .sequences = step.sequences,
                  .block = b,
                  .filler = c.draft.noise_token_id,
                  .tokens = tokens,
                  .positions = positions,
                  .last = last,
                  .sequence_of = sequence_of,
                  .by_place = by_place,
                  .blocks = blocks});
  // Every row sees the W rows before the block and the whole block: as a window of W + B rows that ends with it.
  const LayerRows rows{.tokens = tokens,
                       .cache = {.window = c.window + b,
                                 .sequences = blocks,
                                 .num_sequences = s,
                                 .sequence_of = sequence_of.i32(),
                                 .positions = last.i64(),
                                 .num_tokens = t},
                       .rope = AnglesOf(ctx, model, positions, a),
                       .appends = Appends::kNever};
  const Frame f = FrameOf(a.streams.Head(t), a);
  Embed(ctx, {.tokens = tokens, .table = EmbedOf(model.weights), .streams = f.streams});
  Activation pending;
  int64_t site = 0;
  for (int64_t stage = 0; stage < c.draft.stages; ++stage)
    pending = DecoderLayer(ctx, model, c.num_layers + stage, PlanOf(ctx, model, stage, t), rows, f, pending, &site, a);
  HcPost(ctx, {.y = f.y, .post = f.post, .comb = f.comb, .streams = f.streams});
  const Tensor out_streams = a.out_streams.Head(t), out = draft.hidden.Head(t);
  GatherRows(ctx, {.x = f.streams, .rows = by_place, .out = out_streams});
  ReadStreams(ctx, model, model.weights.draft.hc_head, out_streams, out);
  LogitsOf(ctx, model, out, model.weights.draft.norm, HeadOf(model.weights), draft.base.Head(t), &site, a);
  AdvanceExchanges(ctx, site);
}

// The chain's next link: the block's own logits of that place, and what the token before says.
void DraftChain(const ExecContext& ctx, const Model& model, const StepView& step, int64_t place, Activations& a,
                const Tensor& logits, const Tensor& confidence) {
  const Config& c = model.config;
  const DraftWeights& w = model.weights.draft;
  const int64_t s = step.num_tokens(), d = c.hidden_size, rank = c.draft.markov_rank;
  const Tensor before = a.draft.markov.Head(s), joined = a.draft.joined.Head(s);
  const Tensor hidden = a.draft.hidden.Rows(place * s, s), base = a.draft.base.Rows(place * s, s);
  Embed(ctx, {.tokens = step.tokens, .table = w.markov_in, .streams = before.Reshaped({s, 1, rank})});
  Project(ctx, model, w.markov_out, before, logits, a.draft.rounded);
  StreamAdd(ctx, {.y = base, .streams = logits.Reshaped({s, 1, c.vocab_size})});
  StreamMean(ctx, {.streams = hidden.Reshaped({s, 1, d}), .out = joined});
  StreamMean(ctx, {.streams = before.Reshaped({s, 1, rank}), .out = joined, .first = d});
  Project(ctx, model, w.confidence, joined, confidence.Reshaped({s, 1}), a.draft.rounded);
}

}  // namespace

void KeepDraftRows(const ExecContext& ctx, const Model& model, const StepView& step, const Frame& f, Activations& a) {
  if (model.config.draft.is_mtp()) return KeepMtpRows(ctx, model, step, f, a);
  KeepDsparkRows(ctx, model, step, f, a);
}

void Draft(const ExecContext& ctx, const Model& model, const StepView& step, int64_t place, Activations& a,
           const Tensor& logits, const Tensor& confidence) {
  const DraftConfig& draft = model.config.draft;
  const int64_t s = step.num_tokens(), rows = s * draft.rows();
  DSV4_CHECK(place >= 0 && place < draft.most(), "place ", place, " of a draft module with ", draft.most());
  DSV4_CHECK(step.num_sequences == s && rows <= kDraftRows && rows <= a.max_tokens() && rows <= a.max_rows());
  if (draft.is_mtp()) return DraftMtp(ctx, model, step, a, logits);
  if (place == 0) DraftBlock(ctx, model, step, a);
  DraftChain(ctx, model, step, place, a, logits, confidence);
}

}  // namespace dsv4::deepseek_v4
