#include "model/deepseek_v4/schema/schema.h"

#include "base/str.h"

namespace dsv4::deepseek_v4 {

namespace {

using enum WeightKind;
using enum WeightCut;
using enum WeightPresence;
using Field = WeightField;
using Owner = const WeightOwner&;
using Sizes = const Letters&;

constexpr WeightRow kModelRows[] = {
    {"embed.weight", kEmbedding, kWhole, kAlways,
     [](Sizes s) {
       return Shape{s.V, s.D};
     },
     [](Owner w) -> Field { return w.model->embed; }},
    {"layers", kLayers},
    {"hc_head_fn", kMix, kWhole, kAlways,
     [](Sizes s) {
       return Shape{s.H, s.H * s.D};
     },
     [](Owner w) -> Field { return w.model->hc_head.fn; }},
    {"hc_head_base", kVector, kWhole, kAlways, [](Sizes s) { return Shape{s.H}; },
     [](Owner w) -> Field { return w.model->hc_head.base; }},
    {"hc_head_scale", kVector, kWhole, kAlways, [](Sizes) { return Shape{1}; },
     [](Owner w) -> Field { return w.model->hc_head.scale; }},
    {"norm.weight", kVector, kWhole, kAlways, [](Sizes s) { return Shape{s.D}; },
     [](Owner w) -> Field { return w.model->norm; }},
    {"head", kDense, kRows, kAlways,
     [](Sizes s) {
       return Shape{s.V, s.D};
     },
     [](Owner w) -> Field { return w.model->head; }},
    {"", kVector, kWhole, kAlways, [](Sizes s) { return Shape{s.Dr / 2}; },
     [](Owner w) -> Field { return w.model->plain_frequencies; }},
    {"", kVector, kWhole, kAlways, [](Sizes s) { return Shape{s.Dr / 2}; },
     [](Owner w) -> Field { return w.model->compress_frequencies; }},
    {"mtp", kStages},
};

constexpr WeightRow kLayerRows[] = {
    {"hc_attn_fn", kMix, kWhole, kAlways,
     [](Sizes s) {
       return Shape{(2 + s.H) * s.H, s.H * s.D};
     },
     [](Owner w) -> Field { return w.layer->hc_attn.fn; }},
    {"hc_attn_base", kVector, kWhole, kAlways, [](Sizes s) { return Shape{(2 + s.H) * s.H}; },
     [](Owner w) -> Field { return w.layer->hc_attn.base; }},
    {"hc_attn_scale", kVector, kWhole, kAlways, [](Sizes) { return Shape{3}; },
     [](Owner w) -> Field { return w.layer->hc_attn.scale; }},
    {"attn_norm.weight", kVector, kWhole, kAlways, [](Sizes s) { return Shape{s.D}; },
     [](Owner w) -> Field { return w.layer->attn_norm; }},

    {"attn.wq_a", kDense, kWhole, kAlways,
     [](Sizes s) {
       return Shape{s.Rq, s.D};
     },
     [](Owner w) -> Field { return w.layer->attn.q_a; }},
    {"attn.q_norm.weight", kVector, kWhole, kAlways, [](Sizes s) { return Shape{s.Rq}; },
     [](Owner w) -> Field { return w.layer->attn.q_a_norm; }},
    {"attn.wq_b", kDense, kHeads, kAlways,
     [](Sizes s) {
       return Shape{s.N * s.Dh, s.Rq};
     },
     [](Owner w) -> Field { return w.layer->attn.q_b; }},
    {"attn.wkv", kDense, kWhole, kAlways,
     [](Sizes s) {
       return Shape{s.Dh, s.D};
     },
     [](Owner w) -> Field { return w.layer->attn.kv_proj; }},
    {"attn.kv_norm.weight", kVector, kWhole, kAlways, [](Sizes s) { return Shape{s.Dh}; },
     [](Owner w) -> Field { return w.layer->attn.kv_norm; }},
    {"attn.attn_sink", kVector, kHeads, kAlways, [](Sizes s) { return Shape{s.N}; },
     [](Owner w) -> Field { return w.layer->attn.sink; }},
    {"attn.wo_a", kDense, kGroups, kAlways,
     [](Sizes s) {
       return Shape{s.G * s.Ro, s.N * s.Dh / s.G};
     },
     [](Owner w) -> Field { return w.layer->attn.o_a; }},
    {"attn.wo_b", kDense, kGroupColumns, kAlways,
     [](Sizes s) {
       return Shape{s.D, s.G * s.Ro};
     },
     [](Owner w) -> Field { return w.layer->attn.o_b; }},
    {"", kDense, kWhole, kRanks,
     [](Sizes s) {
       return Shape{s.N * s.Dh, s.Rq};
     },
     [](Owner w) -> Field { return w.layer->attn.whole.q_b; }},
    {"", kVector, kWhole, kRanks, [](Sizes s) { return Shape{s.N}; },
     [](Owner w) -> Field { return w.layer->attn.whole.sink; }},
    {"", kDense, kWhole, kRanks,
     [](Sizes s) {
       return Shape{s.G * s.Ro, s.N * s.Dh / s.G};
     },
     [](Owner w) -> Field { return w.layer->attn.whole.o_a; }},
    {"", kDense, kWhole, kRanks,
     [](Sizes s) {
       return Shape{s.D, s.G * s.Ro};
     },
     [](Owner w) -> Field { return w.layer->attn.whole.o_b; }},

    {"attn.compressor.wkv", kCompressor, kWhole, kCompressed,
     [](Sizes s) {
       return Shape{s.coff * s.Dh, s.D};
     },
     [](Owner w) -> Field { return w.layer->attn.compressor.kv_proj; }},
    {"attn.compressor.wgate", kCompressor, kWhole, kCompressed,
     [](Sizes s) {
       return Shape{s.coff * s.Dh, s.D};
     },
     [](Owner w) -> Field { return w.layer->attn.compressor.gate_proj; }},
    {"attn.compressor.ape", kVector, kWhole, kCompressed,
     [](Sizes s) {
       return Shape{s.m, s.coff * s.Dh};
     },
     [](Owner w) -> Field { return w.layer->attn.compressor.slot_bias; }},
    {"attn.compressor.norm.weight", kVector, kWhole, kCompressed, [](Sizes s) { return Shape{s.Dh}; },
     [](Owner w) -> Field { return w.layer->attn.compressor.norm; }},

    {"attn.indexer.wq_b", kDense, kWhole, kIndexed,
     [](Sizes s) {
       return Shape{s.Ni * s.Di, s.Rq};
     },
     [](Owner w) -> Field { return w.layer->attn.indexer.q_b; }},
    {"attn.indexer.weights_proj", kSmall, kWhole, kIndexed,
     [](Sizes s) {
       return Shape{s.Ni, s.D};
     },
     [](Owner w) -> Field { return w.layer->attn.indexer.weights_proj; }},
    {"attn.indexer.compressor.wkv", kCompressor, kWhole, kIndexed,
     [](Sizes s) {
       return Shape{s.coff * s.Di, s.D};
     },
     [](Owner w) -> Field { return w.layer->attn.indexer.compressor.kv_proj; }},
    {"attn.indexer.compressor.wgate", kCompressor, kWhole, kIndexed,
     [](Sizes s) {
       return Shape{s.coff * s.Di, s.D};
     },
     [](Owner w) -> Field { return w.layer->attn.indexer.compressor.gate_proj; }},
    {"attn.indexer.compressor.ape", kVector, kWhole, kIndexed,
     [](Sizes s) {
       return Shape{s.m, s.coff * s.Di};
     },
     [](Owner w) -> Field { return w.layer->attn.indexer.compressor.slot_bias; }},
    {"attn.indexer.compressor.norm.weight", kVector, kWhole, kIndexed, [](Sizes s) { return Shape{s.Di}; },
     [](Owner w) -> Field { return w.layer->attn.indexer.compressor.norm; }},

    {"hc_ffn_fn", kMix, kWhole, kAlways,
     [](Sizes s) {
       return Shape{(2 + s.H) * s.H, s.H * s.D};
     },
     [](Owner w) -> Field { return w.layer->hc_ffn.fn; }},
    {"hc_ffn_base", kVector, kWhole, kAlways, [](Sizes s) { return Shape{(2 + s.H) * s.H}; },
     [](Owner w) -> Field { return w.layer->hc_ffn.base; }},
    {"hc_ffn_scale", kVector, kWhole, kAlways, [](Sizes) { return Shape{3}; },
     [](Owner w) -> Field { return w.layer->hc_ffn.scale; }},
    {"ffn_norm.weight", kVector, kWhole, kAlways, [](Sizes s) { return Shape{s.D}; },
     [](Owner w) -> Field { return w.layer->ffn_norm; }},

    {"ffn.gate", kSmall, kWhole, kAlways,
     [](Sizes s) {
       return Shape{s.E, s.D};
     },
     [](Owner w) -> Field { return w.layer->moe.router; }},
    {"ffn.gate.bias", kVector, kWhole, kLearned, [](Sizes s) { return Shape{s.E}; },
     [](Owner w) -> Field { return w.layer->moe.router_bias; }},
    {"ffn.gate.tid2eid", kIds, kWhole, kHash,
     [](Sizes s) {
       return Shape{s.V, s.A};
     },
     [](Owner w) -> Field { return w.layer->moe.hash_table; }},
    {"ffn.experts", kExperts},
    {"ffn.shared_experts.w1", kDense, kRows, kAlways,
     [](Sizes s) {
       return Shape{s.F, s.D};
     },
     [](Owner w) -> Field { return w.layer->moe.shared.gate; }},
    {"ffn.shared_experts.w3", kDense, kRows, kAlways,
     [](Sizes s) {
       return Shape{s.F, s.D};
     },
     [](Owner w) -> Field { return w.layer->moe.shared.up; }},
    {"ffn.shared_experts.w2", kDense, kColumns, kAlways,
     [](Sizes s) {
       return Shape{s.D, s.F};
     },
     [](Owner w) -> Field { return w.layer->moe.shared.down; }},
};

constexpr WeightRow kExpertRows[] = {
    {"w1", kExpert, kRows, kAlways,
     [](Sizes s) {
       return Shape{s.F, s.D};
     },
     [](Owner w) -> Field { return w.expert->gate; }},
    {"w3", kExpert, kRows, kAlways,
     [](Sizes s) {
       return Shape{s.F, s.D};
     },
     [](Owner w) -> Field { return w.expert->up; }},
    {"w2", kExpert, kColumns, kAlways,
     [](Sizes s) {
       return Shape{s.D, s.F};
     },
     [](Owner w) -> Field { return w.expert->down; }},
};

constexpr WeightRow kStageRows[] = {
    {"enorm.weight", kVector, kWhole, kFirstMtp, [](Sizes s) { return Shape{s.D}; },
     [](Owner w) -> Field { return w.model->draft.embed_norm; }},
    {"hnorm.weight", kVector, kWhole, kFirstMtp, [](Sizes s) { return Shape{s.D}; },
     [](Owner w) -> Field { return w.model->draft.hidden_norm; }},
    {"e_proj", kDense, kWhole, kFirstMtp,
     [](Sizes s) {
       return Shape{s.D, s.D};
     },
     [](Owner w) -> Field { return w.model->draft.embed_proj; }},
    {"h_proj", kDense, kWhole, kFirstMtp,
     [](Sizes s) {
       return Shape{s.D, s.D};
     },
     [](Owner w) -> Field { return w.model->draft.hidden_proj; }},
    {"main_proj", kDense, kWhole, kFirstDspark,
     [](Sizes s) {
       return Shape{s.D, s.targets * s.D};
     },
     [](Owner w) -> Field { return w.model->draft.main_proj; }},
    {"main_norm.weight", kVector, kWhole, kFirstDspark, [](Sizes s) { return Shape{s.D}; },
     [](Owner w) -> Field { return w.model->draft.main_norm; }},
    {"hc_head_fn", kMix, kWhole, kLast,
     [](Sizes s) {
       return Shape{s.H, s.H * s.D};
     },
     [](Owner w) -> Field { return w.model->draft.hc_head.fn; }},
    {"hc_head_base", kVector, kWhole, kLast, [](Sizes s) { return Shape{s.H}; },
     [](Owner w) -> Field { return w.model->draft.hc_head.base; }},
    {"hc_head_scale", kVector, kWhole, kLast, [](Sizes) { return Shape{1}; },
     [](Owner w) -> Field { return w.model->draft.hc_head.scale; }},
    {"norm.weight", kVector, kWhole, kLast, [](Sizes s) { return Shape{s.D}; },
     [](Owner w) -> Field { return w.model->draft.norm; }},
    {"emb.tok_emb.weight", kEmbedding, kWhole, kOwnEmbed,
     [](Sizes s) {
       return Shape{s.V, s.D};
     },
     [](Owner w) -> Field { return w.model->draft.embed; }},
    {"head", kDense, kRows, kOwnHead,
     [](Sizes s) {
       return Shape{s.V, s.D};
     },
     [](Owner w) -> Field { return w.model->draft.head; }},
    {"markov_head.markov_w1.weight", kEmbedding, kWhole, kLastDspark,
     [](Sizes s) {
       return Shape{s.V, s.rank};
     },
     [](Owner w) -> Field { return w.model->draft.markov_in; }},
    {"markov_head.markov_w2", kSmall, kWhole, kLastDspark,
     [](Sizes s) {
       return Shape{s.V, s.rank};
     },
     [](Owner w) -> Field { return w.model->draft.markov_out; }},
    {"confidence_head.proj", kSmall, kWhole, kLastDspark,
     [](Sizes s) {
       return Shape{1, s.D + s.rank};
     },
     [](Owner w) -> Field { return w.model->draft.confidence; }},
};

constexpr StackedExperts kStacked[] = {
    {"ffn.experts.gate_up", 0, 2},
    {"ffn.experts.down", 2, 1},
};

}  // namespace

constinit const std::span<const WeightRow> kModelWeights = kModelRows;
constinit const std::span<const WeightRow> kLayerWeights = kLayerRows;
constinit const std::span<const WeightRow> kExpertWeights = kExpertRows;
constinit const std::span<const WeightRow> kStageWeights = kStageRows;
constinit const std::span<const StackedExperts> kStackedExperts = kStacked;

Letters LettersOf(const Config& c) {
  return {.V = c.vocab_size,
          .D = c.hidden_size,
          .H = c.hc_mult,
          .N = c.num_heads,
          .Dh = c.head_dim,
          .Dr = c.rope_dim,
          .Rq = c.q_lora_rank,
          .G = c.o_groups,
          .Ro = c.o_lora_rank,
          .Ni = c.index_heads,
          .Di = c.index_head_dim,
          .E = c.num_experts,
          .A = c.experts_per_token,
          .F = c.moe_intermediate,
          .targets = static_cast<int64_t>(c.draft.targets.size()),
          .rank = c.draft.markov_rank};
}

Letters LettersOf(const Config& config, int64_t layer) {
  Letters letters = LettersOf(config);
  letters.m = config.rule(layer).ratio;
  letters.coff = config.rule(layer).overlap;
  return letters;
}

bool IsPresent(WeightPresence presence, const Config& config, int64_t layer) {
  switch (presence) {
    case kAlways:
      return true;
    case kCompressed:
      return config.rule(layer).ratio != 0;
    case kIndexed:
      return config.rule(layer).indexed;
    case kHash:
      return config.is_hash(layer);
    case kLearned:
      return !config.is_hash(layer);
    case kRanks:
      return false;
    case kFirstMtp:
      return config.draft.is_mtp();
    case kFirstDspark:
    case kLastDspark:
      return config.draft.is_dspark();
    case kLast:
      return true;
    case kOwnEmbed:
      return config.draft.own_embed;
    case kOwnHead:
      return config.draft.own_head;
  }
  return false;
}

std::string WeightRef::Block() const {
  return layer < 0 ? "" : stage < 0 ? StrCat("layers.", layer, ".") : StrCat("mtp.", stage, ".");
}

std::string WeightRef::Stem() const {
  if (expert < 0) return StrCat(Block(), row->official);
  return StrCat(Block(), "ffn.experts.", expert, ".", row->official);
}

std::string WeightRef::Name() const { return IsAnyFormat(row->kind) ? StrCat(Stem(), ".weight") : Stem(); }

}  // namespace dsv4::deepseek_v4
