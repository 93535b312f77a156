#include "model/deepseek_v4/forward.h"

#include "base/str.h"
#include "layers/linear.h"
#include "model/deepseek_v4/rope.h"
#include "ops/embed/embed.h"
#include "ops/gather_ranks/gather_ranks.h"
#include "ops/gather_rows/gather_rows.h"
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

HcBridgeArgs SiteArgs(const Model& model, const HcWeights& w, const Tensor& norm, const Tensor& pending, const Frame& f) {
  const Config& c = model.config;
  return {.streams = f.streams, .y = pending, .fn = w.fn, .base = w.base, .scale = w.scale,
          .iters = c.hc_sinkhorn_iters, .eps = c.hc_eps, .norm_eps = c.rms_norm_eps, .norm = norm, .x = f.x,
          .post = f.post, .comb = f.comb};
}

// Writes the output of the sublayer before, if it is pending, into the streams; reads them into f.x through the next site's
// mixes; norms f.x. `reader` reads it: where it takes blocks, f.x lies in `blocks` as well.
LinearInput NextSite(const ExecContext& ctx, const Model& model, const HcWeights& w, const Tensor& norm, const Tensor& pending, const Frame& f,
                     const QuantTensor& reader, const Tensor& blocks) {
  HcBridgeArgs args = SiteArgs(model, w, norm, pending, f);
  if (ReadsBlocks(ctx, model.modes.activation, reader) && HcBridgeWritesBlocks(ctx, args)) {
    args.x_blocks = static_cast<uint8_t*>(blocks.data);
  }
  HcBridge(ctx, args);
  return {f.x, args.x_blocks};
}

// A sublayer's output, of which every rank has a part. `site` counts the pass's exchanges.
void SumParts(const ExecContext& ctx, const Tensor& y, int64_t* site) {
  SumRanks(ctx, {.y = y, .site = *site});
  *site += RankExchanges(ctx, y.num_elements());
}

// `pending`: the output of the layer before, or none. Returns this layer's own, for the next one where `more`.
Tensor DecoderLayer(const ExecContext& ctx, const Model& model, int64_t l, const StepView& step, const Frame& f,
                    const Tensor& pending, bool more, int64_t* site, Activations& a) {
  const Config& c = model.config;
  const LayerWeights& w = model.weights.layers[static_cast<size_t>(l)];
  const CacheView cache{.layer = &model.kv_layout.layers[static_cast<size_t>(l)], .window = c.window,
                        .sequences = step.sequences, .num_sequences = step.num_sequences,
                        .sequence_of = step.sequence_of, .positions = step.positions.i64(),
                        .num_tokens = step.num_tokens()};
  const AttentionSettings attention{.num_heads = c.num_heads, .head_dim = c.head_dim, .o_groups = c.o_groups,
                                    .index_heads = c.index_heads, .index_head_dim = c.index_head_dim,
                                    .norm_eps = c.rms_norm_eps, .activation = model.modes.activation,
                                    .index_dtype = model.modes.index};
  const MoeSettings moe{.scaling_factor = c.routed_scaling_factor, .limit = c.swiglu_limit,
                        .activation = model.modes.activation};

  // Blocks lie where inputs are rounded to in other modes.
  const LinearInput x = NextSite(ctx, model, w.hc_attn, w.attn_norm, pending, f, w.attn.q_a, a.attention.rounded);
  const RopeAnglesView& rope = c.kind(l) == LayerKind::kSliding ? f.plain : f.compress;
  Attention(ctx, w.attn, attention, rope, cache, x, a.attention, f.y);
  SumParts(ctx, f.y, site);
  const LinearInput x2 = NextSite(ctx, model, w.hc_ffn, w.ffn_norm, /*pending=*/f.y, f, w.moe.shared.gate, a.moe.rounded);
  bool adds = false;  // the next layer's first site adds the experts' outputs up
  if (more && c.num_ranks == 1) {
    const LayerWeights& next = model.weights.layers[static_cast<size_t>(l + 1)];
    const int64_t t = f.x.dim(0), slots = a.moe.expert_ids.dim(1);
    adds = HcBridgeAddsSlots(ctx, SiteArgs(model, next.hc_attn, next.attn_norm, {a.moe.outputs.data, DType::kF32, {t, slots, c.hidden_size}}, f));
  }
  const Tensor y = Moe(ctx, w.moe, moe, step.tokens, x2, a.moe, f.y, adds);
  SumParts(ctx, y, site);
  return y;
}

}  // namespace

KvSpec MakeKvSpec(const Config& c, const NumericsModes& modes) {
  return {.compress_ratios = c.compress_ratios, .window = c.window, .head_dim = c.head_dim, .rope_dim = c.rope_dim,
          .index_head_dim = c.index_head_dim, .kv_dtype = modes.kv, .index_dtype = modes.index};
}

Model MakeModel(Config config, Weights weights, NumericsModes modes) {
  Model m{.config = std::move(config), .weights = std::move(weights), .modes = modes};
  m.kv_layout = MakeKvLayout(MakeKvSpec(m.config, modes));
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
  Tensor pending;
  int64_t site = 0;
  for (int64_t l = 0; l < c.num_layers; ++l) {
    pending = DecoderLayer(ctx, model, l, step, f, pending, !observer && l + 1 < c.num_layers, &site, a);
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
  QuantLinear(ctx, model.modes.activation, out, w.head, columns, a.rounded_out);
  GatherRanks(ctx, {.x = columns, .y = logits, .site = site});
  AdvanceExchanges(ctx, site + RankExchanges(ctx, columns.num_elements()));
}

std::string ExchangeName(const Config& config, int64_t site) {
  if (site >= 2 * config.num_layers) return "logits";
  return StrCat("layer ", site / 2, ", ", site % 2 == 0 ? "attention" : "experts");
}

}  // namespace dsv4::deepseek_v4
