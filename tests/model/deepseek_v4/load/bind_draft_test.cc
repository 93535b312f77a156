// Draft modules: detection in a checkpoint, required tensors, and errors for wrong ones.
#include <deque>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/str.h"
#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"
#include "model/deepseek_v4/schema/draft_config.h"
#include "model/deepseek_v4/schema/visit_weights.h"

namespace dsv4::deepseek_v4 {
namespace {

using namespace dsv4::test;  // NOLINT
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Tensors = std::vector<TestTensor>;

Tensors Join(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Bound {
  Config config;
  Weights weights;
  BindReport report;
};

struct Folder {
  std::string name;
  Tensors tensors;
  Json config = {};  // null: the folder has none
};

Result<Bound> Open(const Json& json, const Tensors& tensors, DraftModule wanted,
                   const std::vector<Folder>& beside = {}) {
  const TempDir dir;
  WriteModel(dir.path(), json, tensors);
  for (const Folder& folder : beside) {
    std::filesystem::create_directory(dir / folder.name);
    if (!folder.tensors.empty()) WriteTensors(dir / (folder.name + "/model.safetensors"), folder.tensors);
    if (!folder.config.is_null()) WriteBytes(dir / (folder.name + "/config.json"), folder.config.dump());
  }
  Bound bound;
  DSV4_ASSIGN_OR_RETURN(bound.config, LoadConfig(dir.path()));
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const TensorSource> source, TensorSource::Open(dir.path()));
  DSV4_ASSIGN_OR_RETURN(source, WithDraftFolder(dir.path(), std::move(source), wanted));
  DSV4_RETURN_IF_ERROR(LoadDraftConfig(dir.path(), *source, wanted, &bound.config));
  DSV4_ASSIGN_OR_RETURN(bound.weights, BindWeights(bound.config, source, &bound.report));
  return bound;
}

Tensors WithMtp(const Dialect& trunk = kOfficial, const Dialect& draft = kOfficial) {
  return Join(MakeCheckpoint(TinyConfig(), trunk), MakeMtp(TinyConfig(), draft));
}
Tensors WithDspark(const Dialect& trunk = kOfficial, const Dialect& draft = kOfficial) {
  return Join(MakeCheckpoint(TinyConfig(), trunk), MakeDspark(TinyConfig(), draft, 2));
}

void ExpectRefused(const Result<Bound>& bound, std::initializer_list<std::string> parts) {
  ASSERT_FALSE(bound.ok());
  const std::string& message = bound.status().message();
  for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

TEST(BindDraft, MtpIsBoundWhenItIsAskedFor) {
  for (const DraftModule wanted : {DraftModule::kMtp, DraftModule::kAny}) {
    const auto bound = Open(TinyConfigJson(), WithMtp(), wanted);
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    const Weights& w = bound->weights;
    EXPECT_EQ(bound->config.draft.module, DraftModule::kMtp);
    EXPECT_EQ(w.num_layers(), 3);
    ASSERT_EQ(w.layers.size(), 4u);
    EXPECT_TRUE(w.draft.embed_proj && w.draft.hidden_proj && w.draft.norm && w.draft.hc_head.fn && w.draft.hidden_norm);
    EXPECT_FALSE(w.draft.main_proj || w.draft.markov_in || w.draft.confidence);
    EXPECT_TRUE(w.layers[3].moe.router_bias);
    EXPECT_FALSE(w.layers[3].moe.hash_table || w.layers[3].attn.compressor.kv_proj);
    EXPECT_THAT(bound->report.unused_tensors, IsEmpty());
  }
}

TEST(BindDraft, DsparkIsBoundStageByStage) {
  const auto bound = Open(TinyDsparkConfigJson(), WithDspark(), DraftModule::kDspark);
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  const DraftConfig& d = bound->config.draft;
  EXPECT_EQ(d.stages, 2);
  EXPECT_EQ(d.block, 3);
  EXPECT_EQ(d.noise_token_id, 15);
  EXPECT_THAT(d.targets, ElementsAre(0, 2));
  const Weights& w = bound->weights;
  ASSERT_EQ(w.layers.size(), 5u);
  EXPECT_EQ(w.draft.main_proj.cols, 2 * 128);
  EXPECT_EQ(w.draft.markov_in.cols, 32);
  EXPECT_EQ(w.draft.confidence.cols, 128 + 32);
  EXPECT_TRUE(w.draft.norm && w.draft.hc_head.fn && w.draft.main_norm);
  EXPECT_FALSE(w.draft.embed_proj);
  EXPECT_THAT(bound->report.unused_tensors, IsEmpty());
}

TEST(BindDraft, NothingIsBoundUnlessItIsAskedFor) {
  const auto bound = Open(TinyConfigJson(), WithDspark(), DraftModule::kNone);  // no dspark_* in this config.json
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  EXPECT_EQ(bound->weights.layers.size(), 3u);
  EXPECT_EQ(bound->report.unused_tensors.size(), MakeDspark(TinyConfig(), kOfficial, 2).size());
}

TEST(BindDraft, FormatsOfDraftExpertsAreTheirOwn) {
  for (const auto& [draft, format] :
       {std::pair{kOfficial, WeightFormat::kMxfp4}, std::pair{kModelOpt, WeightFormat::kNvfp4}}) {
    const auto mtp = Open(TinyConfigJson(), WithMtp(kModelOpt, draft), DraftModule::kMtp);
    ASSERT_TRUE(mtp.ok()) << mtp.status().message();
    EXPECT_EQ(mtp->weights.layers[0].moe.experts[0].gate.format, WeightFormat::kNvfp4);
    EXPECT_EQ(mtp->weights.layers[3].moe.experts[3].down.format, format);
    const auto dspark = Open(TinyDsparkConfigJson(), WithDspark(kOfficial, draft), DraftModule::kAny);
    ASSERT_TRUE(dspark.ok()) << dspark.status().message();
    EXPECT_EQ(dspark->weights.layers[2].moe.experts[0].gate.format, WeightFormat::kMxfp4);
    EXPECT_EQ(dspark->weights.layers[4].moe.experts[0].up.format, format);
  }
}

TEST(BindDraft, StagesMayBeSpelledAsTransformersSpellsLayers) {
  const Tensors draft = ToTransformersNames(TinyConfig(), MakeMtp(TinyConfig(), kOfficial), false);
  const Tensors tensors = Join(MakeCheckpoint(TinyConfig(), kOfficial), WithPrefix("model.", draft));
  const auto bound = Open(TinyConfigJson(), tensors, DraftModule::kMtp);
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  EXPECT_THAT(bound->report.unused_tensors, IsEmpty());
}

// Adds the model's tensor `name` under another name; `differs`: with one other bit.
void AddCopy(Tensors& tensors, const std::string& name, const std::string& copy, bool differs) {
  TestTensor tensor = Named(tensors, name);
  tensor.name = copy;
  if (differs) tensor.bytes.back() = static_cast<char>(tensor.bytes.back() ^ 1);
  tensors.push_back(std::move(tensor));
}

TEST(BindDraft, CopiesOfTheModelsMatricesAreLeftOut) {
  Tensors tensors = WithMtp();
  AddCopy(tensors, "embed.weight", "mtp.0.emb.tok_emb.weight", false);
  AddCopy(tensors, "head.weight", "mtp.0.head.weight", false);
  const auto bound = Open(TinyConfigJson(), tensors, DraftModule::kMtp);
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  EXPECT_THAT(bound->report.unused_tensors, ElementsAre("mtp.0.emb.tok_emb.weight", "mtp.0.head.weight"));
  EXPECT_FALSE(bound->weights.draft.embed || bound->weights.draft.head);
}

TEST(BindDraft, MatricesThatDifferFromTheModelsAreBound) {
  Tensors tensors = WithMtp();
  AddCopy(tensors, "embed.weight", "mtp.0.emb.tok_emb.weight", true);
  AddCopy(tensors, "head.weight", "mtp.0.head.weight", true);
  const auto bound = Open(TinyConfigJson(), tensors, DraftModule::kMtp);
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  EXPECT_THAT(bound->report.unused_tensors, IsEmpty());
  const Weights& w = bound->weights;
  ASSERT_TRUE(w.draft.embed && w.draft.head);
  EXPECT_EQ(w.draft.head.rows, w.head.rows);
  EXPECT_NE(w.draft.head.codes, w.head.codes);
  EXPECT_NE(w.draft.embed.codes, w.embed.codes);

  Tensors misshapen = WithMtp();
  misshapen.push_back({"mtp.0.head.weight", DType::kBf16, {8, 128}, std::string(8 * 128 * 2, '\0')});
  ExpectRefused(Open(TinyConfigJson(), misshapen, DraftModule::kMtp), {"mtp.0.head.weight", "[8, 128]"});
}

// DSpark embeds tokens in its first block and computes logits in its last.
TEST(BindDraft, OtherBlocksThanTheRightOneHaveOnlyCopies) {
  Tensors tensors = WithDspark();
  AddCopy(tensors, "embed.weight", "mtp.1.emb.tok_emb.weight", false);
  AddCopy(tensors, "head.weight", "mtp.1.head.weight", true);
  const auto bound = Open(TinyDsparkConfigJson(), tensors, DraftModule::kDspark);
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  EXPECT_TRUE(bound->weights.draft.head);
  EXPECT_FALSE(bound->weights.draft.embed);
  AddCopy(tensors, "head.weight", "mtp.0.head.weight", true);
  ExpectRefused(Open(TinyDsparkConfigJson(), tensors, DraftModule::kDspark),
                {"mtp.0.head.weight", "differs from the model's", "in the last"});
}

TEST(BindDraft, VisitsEveryTensorOnceAndTheModelsFirst) {
  const auto bound = Open(TinyDsparkConfigJson(), WithDspark(), DraftModule::kDspark);
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  std::vector<std::string> names;
  VisitNamedWeights(
      bound->weights,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (m) names.push_back(ref.Name());
      },
      [&](const WeightRef& ref, const Tensor& t) {
        if (t) names.push_back(ref.Name());
      });
  const auto count = [&](const char* name) { return std::count(names.begin(), names.end(), name); };
  for (const char* name : {"mtp.0.main_norm.weight", "mtp.1.norm.weight", "mtp.1.markov_head.markov_w2.weight",
                           "mtp.0.ffn.experts.2.w1.weight", "mtp.1.attn.wkv.weight"})
    EXPECT_EQ(count(name), 1) << name;
  const auto of_drafts = [](const std::string& n) { return n.starts_with("mtp."); };
  EXPECT_TRUE(std::all_of(std::find_if(names.begin(), names.end(), of_drafts), names.end(), of_drafts));
}

TEST(BindDraft, AModuleThatIsNotThereIsNamed) {
  const Tensors trunk = MakeCheckpoint(TinyConfig(), kOfficial);
  ExpectRefused(Open(TinyConfigJson(), trunk, DraftModule::kMtp),
                {"no MTP module", "mtp.0.e_proj.weight", "--speculate"});
  ExpectRefused(Open(TinyDsparkConfigJson(), WithDspark(), DraftModule::kMtp), {"no MTP module", "but DSpark"});
  ExpectRefused(Open(TinyConfigJson(), WithMtp(), DraftModule::kDspark), {"no DSpark module", "but MTP"});
  const auto none = Open(TinyConfigJson(), trunk, DraftModule::kAny);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->config.draft.module, DraftModule::kNone);
}

TEST(BindDraft, AFolderBesideTheCheckpointHoldsAModule) {
  const Tensors trunk = MakeCheckpoint(TinyConfig(), kOfficial);
  const Folder mtp{"mtp", MakeMtp(TinyConfig(), kOfficial)}, dspark{"dspark", MakeDspark(TinyConfig(), kOfficial, 2)};
  const auto opened = [&](DraftModule wanted, const std::vector<Folder>& beside, const Tensors& tensors) {
    const auto bound = Open(TinyDsparkConfigJson(), tensors, wanted, beside);
    EXPECT_TRUE(bound.ok()) << bound.status().message();
    if (!bound.ok()) return DraftModule::kNone;
    EXPECT_THAT(bound->report.unused_tensors, IsEmpty());
    EXPECT_EQ(bound->weights.layers.size(), static_cast<size_t>(3 + bound->config.draft.stages));
    return bound->config.draft.module;
  };
  EXPECT_EQ(opened(DraftModule::kMtp, {mtp, dspark}, trunk), DraftModule::kMtp);
  EXPECT_EQ(opened(DraftModule::kDspark, {mtp, dspark}, trunk), DraftModule::kDspark);
  EXPECT_EQ(opened(DraftModule::kAny, {mtp, dspark}, trunk), DraftModule::kDspark);
  EXPECT_EQ(opened(DraftModule::kAny, {mtp}, trunk), DraftModule::kMtp);
  EXPECT_EQ(opened(DraftModule::kNone, {mtp, dspark}, trunk), DraftModule::kNone);
  EXPECT_EQ(opened(DraftModule::kAny, {dspark}, WithMtp()), DraftModule::kMtp) << "the checkpoint's own goes first";
}

TEST(BindDraft, AFoldersOwnConfigHasItsFields) {
  const Tensors trunk = MakeCheckpoint(TinyConfig(), kOfficial), draft = MakeDspark(TinyConfig(), kOfficial, 2);
  const Json model = TinyConfigJson(), both = TinyDsparkConfigJson();
  const auto own = Open(model, trunk, DraftModule::kAny, {{"dspark", draft, both}});
  ASSERT_TRUE(own.ok()) << own.status().message();
  EXPECT_EQ(own->config.draft.block, 3);
  // A folder that has some fields: the model's config.json has the others.
  const Json some = {{"dspark_block_size", 2}};
  const auto mixed = Open(both, trunk, DraftModule::kAny, {{"dspark", draft, some}});
  ASSERT_TRUE(mixed.ok()) << mixed.status().message();
  EXPECT_EQ(mixed->config.draft.block, 2);
  EXPECT_EQ(mixed->config.draft.markov_rank, 32);
  ExpectRefused(Open(model, trunk, DraftModule::kDspark, {{"dspark", draft, some}}),
                {"/dspark/config.json and ", "dspark_noise_token_id is missing"});
  ExpectRefused(Open(model, trunk, DraftModule::kDspark, {{"dspark", draft, Json::array()}}),
                {"/dspark/config.json: not a JSON object"});
}

// A model that was cut keeps the list of all its layers.
TEST(BindDraft, TheListOfRatiosMayBeThatOfMoreLayers) {
  for (const Json& ratios : {Json{0, 4, 128, 4, 128, 0}, Json{0, 4, 128, 4, 0}, Json{0, 4, 128, 4}}) {
    Json json = TinyDsparkConfigJson();
    json["compress_ratios"] = ratios;
    const auto bound = Open(json, WithDspark(), DraftModule::kDspark);
    ASSERT_TRUE(bound.ok()) << ratios << ": " << bound.status().message();
    EXPECT_THAT(bound->config.compress_ratios, ElementsAre(0, 4, 128, 0, 0));
  }
  Json json = TinyConfigJson();
  json["compress_ratios"] = {0, 4, 128, 4, 0};
  EXPECT_TRUE(Open(json, WithMtp(), DraftModule::kMtp).ok());
}

TEST(BindDraft, AFolderThatDoesNotServeIsNamed) {
  const Tensors trunk = MakeCheckpoint(TinyConfig(), kOfficial);
  Tensors same = trunk;
  const Folder dspark{"dspark", MakeDspark(TinyConfig(), kOfficial, 2)};
  ExpectRefused(Open(TinyDsparkConfigJson(), trunk, DraftModule::kMtp, {dspark}), {"no MTP module", "but DSpark"});
  ExpectRefused(Open(TinyConfigJson(), trunk, DraftModule::kAny, {{"mtp", {}}}), {"no *.safetensors file", "/mtp'"});
  ExpectRefused(Open(TinyConfigJson(), trunk, DraftModule::kMtp, {{"mtp", {Named(same, "norm.weight")}}}),
                {"'norm.weight'", "/model.safetensors'", "/mtp/model.safetensors'"});
}

TEST(BindDraft, TensorsOfNeitherOrBothModulesAreNamed) {
  Tensors neither = WithMtp();
  Erase(neither, "mtp.0.e_proj.weight");
  ExpectRefused(Open(TinyConfigJson(), neither, DraftModule::kAny), {"'mtp.0.", "neither", "mtp.0.main_proj.weight"});
  Tensors both = WithDspark();
  both.push_back(Named(neither, "mtp.0.h_proj.weight"));
  both.back().name = "mtp.0.e_proj.weight";
  ExpectRefused(Open(TinyDsparkConfigJson(), both, DraftModule::kAny), {"both"});
}

TEST(BindDraft, MissingUnknownAndMisshapenTensorsAreNamed) {
  Tensors missing = WithDspark();
  Erase(missing, "mtp.1.markov_head.markov_w2.weight");
  ExpectRefused(Open(TinyDsparkConfigJson(), missing, DraftModule::kDspark),
                {"'mtp.1.markov_head.markov_w2.weight' is missing", "[16, 32]"});
  Tensors shared = WithMtp();
  Erase(shared, "mtp.0.ffn.shared_experts.w2.weight");
  ExpectRefused(Open(TinyConfigJson(), shared, DraftModule::kMtp), {"mtp.0.ffn.shared_experts.w2.weight"});
  Tensors unknown = WithMtp();
  unknown.push_back({"mtp.0.strange", DType::kBf16, {2}, std::string(4, '\0')});
  ExpectRefused(Open(TinyConfigJson(), unknown, DraftModule::kMtp), {"mtp.0.strange", "unknown"});
  Json rank = TinyDsparkConfigJson();
  rank["dspark_markov_rank"] = 64;
  ExpectRefused(Open(rank, WithDspark(), DraftModule::kDspark), {"markov_w1", "[16, 32]", "[16, 64]"});
}

TEST(BindDraft, FieldsOfDsparkAreChecked) {
  const auto refused = [](const char* field, const Json& value, std::initializer_list<std::string> parts) {
    Json json = TinyDsparkConfigJson();
    if (value.is_null()) {
      json.erase(field);
    } else {
      json[field] = value;
    }
    ExpectRefused(Open(json, WithDspark(), DraftModule::kDspark), parts);
  };
  refused("dspark_noise_token_id", 16, {"dspark_noise_token_id is 16", "from 0 to 15"});
  refused("dspark_target_layer_ids", {0, 3}, {"dspark_target_layer_ids is 3", "from 0 to 2"});
  refused("dspark_target_layer_ids", {2, 0}, {"rising order"});
  refused("dspark_target_layer_ids", Json::array(), {"a list of 1 to 3 layers"});
  refused("dspark_target_layer_ids", "all", {"a list of 1 to 3 layers"});
  refused("dspark_target_layer_ids", nullptr, {"dspark_target_layer_ids is missing"});
  refused("dspark_block_size", 9, {"dspark_block_size is 9", "from 2 to 8"});
  refused("dspark_block_size", 1, {"dspark_block_size is 1"});
  refused("dspark_markov_rank", nullptr, {"dspark_markov_rank is missing"});
  refused("compress_ratios", {0, 4, 128, 0, 4}, {"compress_ratios[4] is 4"});
}

TEST(BindDraft, OneMtpBlockIsRead) {
  Tensors two = WithMtp();
  for (TestTensor t : MakeMtp(TinyConfig(), kOfficial)) {
    t.name.replace(0, 6, "mtp.1.");
    two.push_back(std::move(t));
  }
  ExpectRefused(Open(TinyConfigJson(), two, DraftModule::kMtp), {"2 MTP blocks", "accepted: 1"});
}

}  // namespace
}  // namespace dsv4::deepseek_v4
