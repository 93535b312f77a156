// generation_config.json: sampling defaults and EOS ids.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsv4/sampling.h"
#include "io/test_files.h"
#include "support/fixture.h"

namespace dsv4::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SamplingParams DefaultsOf(const std::string& text) {
  const TempDir dir;
  WriteBytes(dir / "generation_config.json", text);
  const auto params = ReadDefaultSampling(dir.path());
  EXPECT_TRUE(params.ok()) << params.status().message();
  return params.ok() ? *params : SamplingParams{};
}

TEST(DefaultSampling, ReadsTheFieldsOfTheFile) {
  const SamplingParams p = DefaultsOf(
      R"({"temperature": 0.25, "top_k": 20, "top_p": 0.75, "min_p": 0.125, "repetition_penalty": 1.5, "other": []})");
  EXPECT_EQ(p.temperature, 0.25f);
  EXPECT_EQ(p.top_k, 20);
  EXPECT_EQ(p.top_p, 0.75f);
  EXPECT_EQ(p.min_p, 0.125f);
  EXPECT_EQ(p.repeat_penalty, 1.5f);
}

TEST(DefaultSampling, AValueThatIsAbsentOrOutOfRangeLeavesTheDefault) {
  const SamplingParams p = DefaultsOf(
      R"({"temperature": null, "top_k": -1, "top_p": 7, "min_p": "0.5", "repetition_penalty": 1e300})");
  EXPECT_EQ(p.temperature, 1.0f);
  EXPECT_EQ(p.top_k, 0);
  EXPECT_EQ(p.top_p, 1.0f);
  EXPECT_EQ(p.min_p, 0.0f);
  EXPECT_EQ(p.repeat_penalty, 1.0f);
  EXPECT_EQ(DefaultsOf(R"({"top_k": 5, "top_p": 7})").top_k, 5);  // each value for itself
  const TempDir empty;
  EXPECT_TRUE(ReadDefaultSampling(empty.path()).ok());
}

TEST(DefaultSampling, AFileThatIsNotAnObjectIsNamed) {
  for (const char* text : {"[1]", "{", "\"x\""}) {
    const TempDir dir;
    WriteBytes(dir / "generation_config.json", text);
    const auto params = ReadDefaultSampling(dir.path());
    ASSERT_FALSE(params.ok()) << text;
    EXPECT_THAT(params.status().message(), HasSubstr("generation_config.json"));
  }
}

TEST(GenerationConfig, ItsEosIdsAreAddedToThoseOfTheConfig) {
  DSV4_FIXTURE_OR_SKIP(fixture, "flash-nvfp4");
  const auto eos_of = [&](const std::string& text) {
    const TempDir dir;
    for (const auto& entry : std::filesystem::directory_iterator(fixture))
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), dir / entry.path().filename().string());
    std::filesystem::remove(dir / "generation_config.json");
    WriteBytes(dir / "generation_config.json", text);
    EngineOptions options;
    options.model_dir = dir.path();
    const auto engine = LoadOrFail(options);
    return engine != nullptr ? engine->info().eos_token_ids : std::vector<TokenId>{};
  };
  EXPECT_THAT(eos_of(R"({"eos_token_id": null})"), ElementsAre(1));
  EXPECT_THAT(eos_of(R"({"eos_token_id": 7})"), ElementsAre(1, 7));
  EXPECT_THAT(eos_of(R"({"eos_token_id": [9, 1, 99999999, -3, "x", 9, 5]})"), ElementsAre(1, 9, 5));
}

}  // namespace
}  // namespace dsv4::test
