// Draft modules with their own embedding table or output matrix, and modules that cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/drafts/model_drafts_fixture.h"
#include "support/changed_checkpoint.h"

namespace dsv4::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

Generated Drafted(const std::string& dir, std::span<const TokenId> prompt, Speculate module) {
  EngineOptions options = ExactOptions(dir);
  options.drafts = {.speculate = module, .tokens = 3, .threshold = 0};
  const auto engine = LoadOrFail(options);
  return engine != nullptr ? Generate(*engine, prompt, 40, {.temperature = 0}) : Generated{};
}

// The rows of a module's matrix in reverse: the drafts are others, the text is the same. A copy changes nothing.
void ExpectUsedIfItDiffers(const std::string& fixture, const std::string& matrix, const std::string& own,
                           Speculate module) {
  DSV4_FIXTURE_OR_SKIP(dir, fixture);
  const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
  const Generated plain = Drafted(dir, prompt, module);
  for (const bool differs : {false, true}) {
    const TempDir changed;
    WriteChanged(dir, changed.path(), [&](std::vector<TestTensor>& tensors, Json&) {
      TestTensor added = TensorNamed(tensors, matrix);
      if (differs) added = Reversed(std::move(added));
      added.name = own;
      tensors.push_back(std::move(added));
    });
    const Generated run = Drafted(changed.path(), prompt, module);
    EXPECT_EQ(run.ids, plain.ids) << own;
    EXPECT_EQ(run.verified == plain.verified, !differs) << own;
  }
}

TEST(OwnMatrices, AModuleDraftsWithItsOwnIfTheyDiffer) {
  ExpectUsedIfItDiffers("flash-mtp", "head.weight", "mtp.0.head.weight", Speculate::kMtp);
  ExpectUsedIfItDiffers("flash-mtp", "embed.weight", "mtp.0.emb.tok_emb.weight", Speculate::kMtp);
  ExpectUsedIfItDiffers("flash-dspark", "head.weight", "mtp.2.head.weight", Speculate::kDspark);
  ExpectUsedIfItDiffers("flash-dspark", "embed.weight", "mtp.0.emb.tok_emb.weight", Speculate::kDspark);
}

// A cut model keeps its draft module, and the list of ratios of all its layers.
TEST(OwnMatrices, ACutModelIsServedWithItsModule) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  const TempDir cut;
  WriteChanged(dir, cut.path(), [](std::vector<TestTensor>& tensors, Json& config) {
    const int64_t layers = config["num_hidden_layers"].get<int64_t>() - 1;
    config["num_hidden_layers"] = layers;
    const std::string last = "layers." + std::to_string(layers) + ".";
    std::erase_if(tensors, [&](const TestTensor& t) { return t.name.starts_with(last); });
  });
  const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
  EXPECT_FALSE(Drafted(cut.path(), prompt, Speculate::kMtp).verified.empty());
}

TEST(UnusableModule, AutoFallsBackToLookupAndGivesTheReason) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-dspark");
  const TempDir changed;
  WriteChanged(dir, changed.path(), [](std::vector<TestTensor>&, Json& config) { config.erase("dspark_block_size"); });
  EngineOptions options = ExactOptions(changed.path());
  options.drafts.speculate = Speculate::kAuto;
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->info().drafter, Speculate::kLookup);
  EXPECT_THAT(engine->info().unusable_draft, HasSubstr("dspark_block_size is missing"));
  options.drafts.speculate = Speculate::kDspark;
  const auto named = Engine::Load(options);
  ASSERT_FALSE(named.ok());
  EXPECT_THAT(named.status().message(), HasSubstr("dspark_block_size is missing"));

  options = ExactOptions(dir);
  options.drafts.speculate = Speculate::kAuto;
  const auto usable = LoadOrFail(options);
  ASSERT_NE(usable, nullptr);
  EXPECT_EQ(usable->info().drafter, Speculate::kDspark);
  EXPECT_THAT(usable->info().unusable_draft, IsEmpty());
}

// A broken model stays an error of its own.
TEST(UnusableModule, ABrokenModelIsNotHidden) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-dspark");
  const TempDir changed;
  WriteChanged(dir, changed.path(), [](std::vector<TestTensor>& tensors, Json&) {
    std::erase_if(tensors, [](const TestTensor& t) { return t.name == "norm.weight"; });
  });
  EngineOptions options = ExactOptions(changed.path());
  options.drafts.speculate = Speculate::kAuto;
  const auto engine = Engine::Load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.status().message(), HasSubstr("'norm.weight' is missing"));
}

}  // namespace
}  // namespace dsv4::test
