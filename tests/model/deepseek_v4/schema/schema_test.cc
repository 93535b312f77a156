// Consistency of the table of weights: errors that binding a checkpoint (bind_test.cc) would not show.
#include "model/deepseek_v4/schema/schema.h"

#include <deque>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/deepseek_v4/load/checkpoint_builder.h"
#include "model/deepseek_v4/schema/bind_names.h"
#include "model/deepseek_v4/schema/visit_weights.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::TinyConfig;

// Calls check(row) for every row that is a tensor.
template <typename Check>
void ForEachRow(const Check& check) {
  for (const auto& rows : {kModelWeights, kLayerWeights, kExpertWeights, kStageWeights}) {
    for (const WeightRow& row : rows) {
      SCOPED_TRACE(row.official);
      if (!IsNested(row.kind)) check(row);
    }
  }
}

TEST(Schema, EveryFieldStandsOnce) {
  Weights w;
  std::set<const void*> fields;
  std::set<std::string> names;
  size_t count = 0, in_files = 0;
  MakeWeights(TinyConfig(), w, [&](const WeightRef& ref, const WeightOwner& owner, const Shape& shape) {
    const WeightField field = ref.row->field(owner);
    EXPECT_EQ(field.vector != nullptr, IsVector(ref.row->kind)) << ref.Name();
    EXPECT_EQ(field.matrix != nullptr, !IsVector(ref.row->kind)) << ref.Name();
    EXPECT_GT(shape.num_elements(), 0) << ref.Name();
    fields.insert(field.matrix != nullptr ? static_cast<const void*>(field.matrix) : field.vector);
    ++count;
    if (!ref.in_files()) return true;
    names.insert(ref.Name());
    ++in_files;
    return true;
  });
  EXPECT_EQ(fields.size(), count);
  EXPECT_EQ(names.size(), in_files);
}

// The size of the struct gives the number of fields of a layer: a field without a row becomes visible here.
TEST(Schema, EveryFieldOfALayerHasARow) {
  size_t matrices = 0, vectors = 0;
  for (const WeightRow& row : kLayerWeights) {
    if (IsNested(row.kind)) continue;
    ++(IsVector(row.kind) ? vectors : matrices);
  }
  const size_t others = sizeof(MoeWeights::experts) + sizeof(MoeWeights::table) + sizeof(MoeWeights::fetched) +
                        sizeof(MoeWeights::supply) + sizeof(MoeWeights::partner) + sizeof(MoeWeights::slices) +
                        sizeof(AttentionWeights::slices);
  EXPECT_EQ(sizeof(LayerWeights), matrices * sizeof(QuantTensor) + vectors * sizeof(Tensor) + others);
  EXPECT_EQ(sizeof(ExpertWeights), kExpertWeights.size() * sizeof(QuantTensor));
  matrices = vectors = 0;
  for (const WeightRow& row : kStageWeights) ++(IsVector(row.kind) ? vectors : matrices);
  EXPECT_EQ(sizeof(DraftWeights), matrices * sizeof(QuantTensor) + vectors * sizeof(Tensor));
}

TEST(Schema, WeightsAreVisitedInTheOrderOfTheirMaking) {
  const Config config = TinyConfig();
  Weights w;
  std::vector<std::string> made, visited;
  static uint8_t there;
  MakeWeights(config, w, [&](const WeightRef& ref, const WeightOwner& owner, const Shape&) {
    const WeightField field = ref.row->field(owner);
    if (field.matrix != nullptr) field.matrix->codes = &there;
    if (field.vector != nullptr) field.vector->data = &there;
    made.push_back(ref.Name());
    return true;
  });
  const Weights& read_only = w;
  VisitNamedWeights(
      read_only,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (m) visited.push_back(ref.Name());
      },
      [&](const WeightRef& ref, const Tensor& t) {
        if (t) visited.push_back(ref.Name());
      });
  EXPECT_EQ(made, visited);
  EXPECT_THAT(made, ::testing::Contains("layers.1.attn.indexer.compressor.wkv.weight"));
  EXPECT_THAT(made, ::testing::Not(::testing::Contains("layers.2.attn.indexer.compressor.wkv.weight")));
  EXPECT_THAT(made, ::testing::Contains("layers.2.ffn.experts.3.w2.weight"));
}

TEST(Schema, MakingStopsWhenToldTo) {
  Weights w;
  int calls = 0;
  MakeWeights(TinyConfig(), w, [&](const WeightRef&, const WeightOwner&, const Shape&) { return ++calls < 3; });
  EXPECT_EQ(calls, 3);
}

TEST(Schema, OfficialNamesAreNotRenamed) {
  std::deque<std::string> storage;
  ForEachRow([&](const WeightRow& row) {
    if (row.official.empty()) return;
    const bool model = &row >= kModelWeights.data() && &row < kModelWeights.data() + kModelWeights.size();
    const std::string_view before = model                             ? ""
                                    : row.kind == WeightKind::kExpert ? "layers.12.ffn.experts.7."
                                                                      : "mtp.2.";
    const std::string official = StrCat(before, row.official, IsAnyFormat(row.kind) ? ".scale" : "");
    EXPECT_EQ(OfficialName(official, storage), official);
    EXPECT_EQ(OfficialName(StrCat("model.", official), storage), official);
    if (!IsAnyFormat(row.kind)) return;
    EXPECT_EQ(OfficialName(StrCat("model.", before, row.official, ".weight_scale_inv"), storage), official);
  });
}

TEST(Schema, OtherSpellingsMeanTheSameTensor) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"model.embed_tokens.weight", "embed.weight"},
      {"lm_head.weight", "head.weight"},
      {"model.hc_head.hc_base", "hc_head_base"},
      {"model.layers.12.input_layernorm.weight", "layers.12.attn_norm.weight"},
      {"model.layers.12.attn_hc.fn", "layers.12.hc_attn_fn"},
      {"model.layers.12.ffn_hc.scale", "layers.12.hc_ffn_scale"},
      {"model.layers.12.self_attn.sinks", "layers.12.attn.attn_sink"},
      {"model.layers.12.self_attn.kv_proj.weight_scale_inv", "layers.12.attn.wkv.scale"},
      {"model.layers.12.attn.norm.weight", "layers.12.attn.kv_norm.weight"},
      {"model.layers.12.self_attn.kv_norm.weight", "layers.12.attn.kv_norm.weight"},
      {"layers.12.self_attn.compressor.kv_norm.weight", "layers.12.attn.compressor.norm.weight"},
      {"layers.12.attn.compressor.indexer.position_bias", "layers.12.attn.indexer.compressor.ape"},
      {"layers.12.attn.compressor.indexer.ape", "layers.12.attn.indexer.compressor.ape"},
      {"layers.12.attn.indexer.compressor.kv_norm.weight", "layers.12.attn.indexer.compressor.norm.weight"},
      {"layers.12.self_attn.compressor.indexer.weights_proj.weight", "layers.12.attn.indexer.weights_proj.weight"},
      {"layers.12.self_attn.compressor.indexer.scorer.weights_proj.weight",
       "layers.12.attn.indexer.weights_proj.weight"},
      {"model.layers.12.mlp.gate.e_score_correction_bias", "layers.12.ffn.gate.bias"},
      {"model.layers.12.mlp.shared_experts.down_proj.weight", "layers.12.ffn.shared_experts.w2.weight"},
      {"model.layers.12.mlp.experts.7.w2.weight", "layers.12.ffn.experts.7.w2.weight"},
      {"model.layers.12.ffn.experts.7.wgate.weight_scale_2", "layers.12.ffn.experts.7.w1.weight_scale_2"},
      {"model.layers.12.ffn.experts.7.up_proj.weight", "layers.12.ffn.experts.7.w3.weight"},
      {"layers.12.ffn.experts.gate_up_proj_scale_inv", "layers.12.ffn.experts.gate_up.scale"},
      {"layers.12.mlp.experts.down_proj", "layers.12.ffn.experts.down.weight"},
      {"mtp.0.hc_head.hc_fn", "mtp.0.hc_head_fn"},
      {"model.mtp.0.mlp.experts.7.gate_proj.weight", "mtp.0.ffn.experts.7.w1.weight"},
      {"mtp.0.lm_head.weight", "mtp.0.head.weight"},
      {"mtp.0.shared_head.head.weight", "mtp.0.head.weight"},
      {"mtp.0.embed_tokens.weight", "mtp.0.emb.tok_emb.weight"},
  };
  std::deque<std::string> storage;
  for (const auto& [name, official] : kNames) EXPECT_EQ(OfficialName(name, storage), official);
}

// A component is renamed in its place only. These names are in no checkpoint, and name no weight.
TEST(Schema, UnknownNamesNameNoWeight) {
  Weights w;
  std::set<std::string> known;
  MakeWeights(TinyConfig(), w, [&](const WeightRef& ref, const WeightOwner&, const Shape&) {
    if (ref.in_files()) known.insert(ref.Name());
    return true;
  });
  for (const StackedExperts& stack : kStackedExperts) known.insert(StrCat("layers.0.", stack.name, ".weight"));
  std::deque<std::string> storage;
  for (const char* name :
       {"layers.0.self_attn.q_a_proj.bias", "layers.0.self_attn.q_a_proj", "lm_head.weight.x", "lm_head_weight",
        "layers.0.mlp.experts.gate_up_proj_bias", "layers.x.self_attn.q_a_proj.weight", "layers.0.wkv.weight",
        "layers.0.attn.w1.weight", "layers.0.ffn.experts.gate_up_proj_scale", "layers.0..self_attn.q_a_proj.weight",
        "model.model.lm_head.weight", "layers.0.attn.gate_proj.weight", "norm.weight.", "", ".", "layers.0."}) {
    EXPECT_FALSE(known.contains(std::string(OfficialName(name, storage)))) << name;
  }
}

// A model with half the heads, groups and expert columns has half of each divided weight, along the axis of its row,
// and all of the others. A config cannot divide the vocabulary, so `head` is checked separately.
TEST(Schema, CutsAreTheAxesThatShrink) {
  Config config = TinyConfig();
  config.num_heads = 8;
  config.o_groups = 4;
  Config half = config;
  half.num_heads /= 2;
  half.o_groups /= 2;
  half.moe_intermediate /= 2;
  const Letters whole = LettersOf(config, 1), cut = LettersOf(half, 1);
  ForEachRow([&](const WeightRow& row) {
    if (row.official == "head") {
      EXPECT_EQ(row.cut, WeightCut::kRows);
      return;
    }
    if (row.presence == WeightPresence::kRanks) return;  // whole, for a divided config
    const bool columns = row.cut == WeightCut::kColumns || row.cut == WeightCut::kGroupColumns;
    const Shape a = row.shape(whole), b = row.shape(cut);
    for (int axis = 0; axis < a.rank(); ++axis) {
      const bool shrinks = row.cut != WeightCut::kWhole && axis == (columns ? 1 : 0);
      EXPECT_EQ(b[axis] * (shrinks ? 2 : 1), a[axis]) << axis;
    }
  });
}

TEST(Schema, StacksCoverAnExpertOnce) {
  size_t next = 0;
  for (const StackedExperts& stack : kStackedExperts) {
    EXPECT_EQ(stack.first, next);
    next += stack.count;
    for (size_t i = stack.first; i < next; ++i) {
      EXPECT_EQ(kExpertWeights[i].shape(LettersOf(TinyConfig())),
                kExpertWeights[stack.first].shape(LettersOf(TinyConfig())));
    }
  }
  EXPECT_EQ(next, kExpertWeights.size());
}

}  // namespace
}  // namespace dsv4::deepseek_v4
