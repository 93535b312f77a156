// Drafts of checkpoints' modules: how many of them a greedy run of a fixture accepts, and that they change nothing.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsv4/sampling.h"
#include "engine/drafts/model_drafts_fixture.h"
#include "support/agreement.h"

namespace dsv4::test {
namespace {

TEST(ModelDrafts, MtpAcceptsWhatTheReferenceAccepts) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  for (const int64_t k : {1, 2, 3}) ExpectAcceptedCounts("cpu", dir, Speculate::kMtp, std::to_string(k), k, 0);
}

TEST(ModelDrafts, DsparkAcceptsWhatTheReferenceAccepts) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-dspark");
  for (const int64_t k : {1, 2, 5}) ExpectAcceptedCounts("cpu", dir, Speculate::kDspark, std::to_string(k), k, 0);
  ExpectAcceptedCounts("cpu", dir, Speculate::kAuto, "cut", 5, 0.3f);
}

// Sampled, batch size one, every number of drafts, rounded rows: the tokens equal those without drafts.
TEST(ModelDrafts, ChangeNothing) {
  for (const char* name : {"flash-mtp", "flash-dspark"}) {
    DSV4_FIXTURE_OR_SKIP(dir, name);
    const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
    const SamplingParams sampling{.temperature = 0.8f, .top_k = 40, .presence_penalty = 0.5f, .seed = 7};
    EngineOptions options;
    options.model_dir = dir;
    options.num_threads = 2;
    auto off = LoadOrFail(options);
    ASSERT_NE(off, nullptr);
    const Generated expected = Generate(*off, prompt, 40, sampling);
    EXPECT_TRUE(expected.verified.empty());
    for (const int64_t k : {1, 3, 7}) {
      options.drafts.speculate = Speculate::kAuto;
      options.drafts.tokens = k;
      options.drafts.threshold = 0;
      auto engine = LoadOrFail(options);
      ASSERT_NE(engine, nullptr);
      const Generated run = Generate(*engine, prompt, 40, sampling);
      EXPECT_EQ(run.ids, expected.ids) << name << ", k " << k;
      EXPECT_FALSE(run.verified.empty());
    }
  }
}

TEST(ModelDrafts, AModuleThatTheCheckpointLacksIsAnError) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  EngineOptions options = ExactOptions(dir);
  options.drafts.speculate = Speculate::kDspark;
  const auto engine = Engine::Load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.status().message(), testing::HasSubstr("no DSpark module"));
  EXPECT_THAT(engine.status().message(), testing::HasSubstr("--speculate"));
}

// For measurements: the requested module with the released shape.
TEST(ModelDrafts, ASyntheticModelGetsWhatIsAskedFor) {
  for (const Speculate module : {Speculate::kMtp, Speculate::kDspark}) {
    EngineOptions options;
    options.synthetic = {.shape = "nano", .num_layers = 3};
    options.num_threads = 2;
    const auto off = LoadOrFail(options);
    options.drafts.speculate = module;
    options.drafts.threshold = 0;
    const auto engine = LoadOrFail(options);
    ASSERT_TRUE(off != nullptr && engine != nullptr);
    const std::vector<TokenId> prompt = {5, 900, 31, 7, 5, 900};
    const SamplingParams sampling{.temperature = 1, .seed = 5};
    const Generated run = Generate(*engine, prompt, 12, sampling);
    EXPECT_EQ(run.ids, Generate(*off, prompt, 12, sampling).ids);
    EXPECT_FALSE(run.verified.empty());
  }
}

// A snapshot includes the module's rings: drafts continue as without it.
TEST(ModelDrafts, ASnapshotKeepsWhatTheyNeed) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
  EngineOptions options = ExactOptions(dir);
  options.drafts.speculate = Speculate::kMtp;
  options.drafts.tokens = 3;
  options.drafts.threshold = 0;
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  auto session = engine->NewSession().value();
  ASSERT_TRUE(session->Append(std::span(prompt).first(100), LogitRows::kNone, nullptr).ok());
  const auto snapshot = session->Snapshot().value();
  session.reset();
  const auto run = [&](std::unique_ptr<Session> from, std::span<const TokenId> rest) {
    std::vector<Verified> verified;
    auto sampler = Sampler::Create({.temperature = 0}, engine->info().vocab_size).value();
    EXPECT_TRUE(from->Append(rest.first(rest.size() - 1), LogitRows::kNone, nullptr).ok());
    DecodeItem item{.session = from.get(), .sampler = sampler.get(), .first = rest.back(), .max_tokens = 30};
    item.on_verification = [&](const Verification& v) {
      verified.push_back({v.position, static_cast<int64_t>(v.proposed.size()), v.accepted});
    };
    EXPECT_TRUE(engine->Decode({&item, 1}, [](size_t, const SampledToken&) { return true; }).ok());
    return verified;
  };
  const std::vector<Verified> whole = run(engine->NewSession().value(), prompt);
  EXPECT_EQ(run(engine->NewSession(*snapshot).value(), std::span(prompt).subspan(100)), whole);
}

}  // namespace
}  // namespace dsv4::test
