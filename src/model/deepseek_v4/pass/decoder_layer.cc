#include "model/deepseek_v4/pass/decoder_layer.h"

#include <algorithm>

#include "layers/linear.h"
#include "ops/gather_ranks/gather_ranks.h"
#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_head/hc_head.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/stream_mean/stream_mean.h"
#include "ops/sum_ranks/sum_ranks.h"

namespace dsv4::deepseek_v4 {

namespace {

// A sublayer's output where every rank has a part of it becomes the sum, in all rows or in own ones.
void JoinParts(const ExecContext& ctx, const Activation& y, int64_t* site) {
  if (y.form != Form::kRankParts && y.form != Form::kRowParts) return;
  const SumRanksArgs sum{.y = y.x, .site = *site, .own_rows = y.form == Form::kRowParts};
  SumRanks(ctx, sum);
  *site += SumExchanges(ctx, sum);
}

}  // namespace

Frame FrameOf(const Tensor& streams, Activations& a) {
  const int64_t t = streams.dim(0);
  return {.streams = streams,
          .x = a.x.Head(t),
          .y = a.y.Head(t),
          .post = a.post.Head(t),
          .comb = a.comb.Head(t),
          .own = {0, t}};
}

Activation NextSite(const ExecContext& ctx, const Config& c, const HcWeights& w, const Tensor& norm,
                    const Activation& pending, const Frame& f, Form form, const Room& room, int64_t* site) {
  const bool pushed = pending.form == Form::kPushedForBridge,
             sums = pushed || pending.form == Form::kPartsForBridge || pending.form == Form::kSlotsForBridge;
  const int64_t rows = f.own.end - f.own.begin;
  uint8_t* blocks = form == Form::kFloatsAndBlocks ? room.Blocks(rows, f.x.dim(1)) : nullptr;
  HcBridge(ctx, {.streams = f.Own(f.streams),
                 .y = pending ? f.Own(pending.x) : Tensor{},
                 .fn = w.fn,
                 .base = w.base,
                 .scale = w.scale,
                 .iters = c.hc_sinkhorn_iters,
                 .eps = c.hc_eps,
                 .norm_eps = c.rms_norm_eps,
                 .norm = norm,
                 .x = f.Own(f.x),
                 .post = f.Own(f.post),
                 .comb = f.Own(f.comb),
                 .sums_ranks = sums,
                 .pushed = pushed,
                 .site = *site,
                 .x_blocks = blocks});
  if (sums) *site += 1;
  return {form, f.x, blocks};
}

void KeepMean(const ExecContext& ctx, const Config& c, int64_t l, const Frame& f) {
  if (!f.main_hidden) return;
  const auto& targets = c.draft.targets;
  const auto at = std::find(targets.begin(), targets.end(), l);
  if (at == targets.end()) return;
  const int64_t first = (at - targets.begin()) * c.hidden_size;
  StreamMean(ctx, {.streams = f.Own(f.streams), .out = f.Own(f.main_hidden), .first = first});
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

Activation DecoderLayer(const ExecContext& ctx, const Model& model, int64_t l, const LayerPlan& plan,
                        const LayerRows& rows, const Frame& f, const Activation& pending, int64_t* site,
                        Activations& a) {
  const Config& c = model.config;
  const LayerWeights& w = model.weights.layers[static_cast<size_t>(l)];
  CacheView cache = rows.cache;
  cache.layer = &model.kv_layout.layers[static_cast<size_t>(l)];
  const MoeSettings moe{
      .scaling_factor = c.routed_scaling_factor, .limit = c.swiglu_limit, .activation = model.modes.activation};

  a.UseLayer(l);
  const Activation x = NextSite(ctx, c, w.hc_attn, w.attn_norm, pending, f, plan.attention.x, a.attention.rounded,
                                site);
  *site = SiteAt(2 * l, *site);
  KeepMean(ctx, c, l - 1, f);
  const bool by_tokens = plan.attention.by_tokens;
  const AttentionWeights& attn = by_tokens ? model.attn_by_tokens[static_cast<size_t>(l)] : w.attn;
  const AttentionSettings own = SettingsOf(c, model.modes);
  const AttentionSettings settings = by_tokens ? WithAllHeads(own, c.num_cuts()) : own;
  Attention(ctx, plan.attention, attn, settings, rows.rope, cache, x, a.attention, f.y, site, rows.appends);
  const Activation heads{plan.attention.out, f.y, nullptr};
  JoinParts(ctx, heads, site);
  // What is gathered into moe's room comes from another one.
  const Room& room = plan.moe.by_tokens ? a.attention.rounded : a.moe.rounded;
  const Activation x2 = NextSite(ctx, c, w.hc_ffn, w.ffn_norm, /*pending=*/heads, f, plan.moe.x, room, site);
  *site = SiteAt(2 * l + 1, *site);
  const Activation experts = Moe(ctx, plan.moe, w.moe, moe, rows.tokens, x2, a.moe, f.y, site);
  JoinParts(ctx, experts, site);
  return experts;
}

void ReadStreams(const ExecContext& ctx, const Model& model, const HcHeadWeights& w, const Tensor& streams,
                 const Tensor& out) {
  HcHead(ctx, {.streams = streams,
               .fn = w.fn,
               .base = w.base,
               .scale = w.scale,
               .eps = model.config.hc_eps,
               .norm_eps = model.config.rms_norm_eps,
               .out = out});
}

void LogitsOf(const ExecContext& ctx, const Model& model, const Tensor& x, const Tensor& norm, const QuantTensor& head,
              const Tensor& logits, int64_t* site, Activations& a) {
  const Config& c = model.config;
  const int64_t r = x.dim(0);
  const Tensor normed = a.out.Head(r), columns = a.rank_logits ? a.rank_logits.Head(r) : logits;
  RmsNorm(ctx, {.x = x, .weight = norm, .y = normed, .eps = c.rms_norm_eps});
  const ActivationDtype mode = model.modes.activation;
  QuantLinear(ctx, mode, normed, {{head, InputOf(ctx, mode, head), columns}}, a.rounded_out);
  *site = SiteAt(PlaceOfLogits(c), *site);
  if (!a.rank_logits) return;
  GatherRanks(ctx, {.x = columns, .y = logits, .site = *site});
  *site += RankExchanges(ctx, columns.num_elements());
}

}  // namespace dsv4::deepseek_v4
