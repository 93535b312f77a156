// Drafts of checkpoints' own modules: how many of them a greedy run of a fixture accepts, and that they change nothing.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dsv4/sampling.h"
#include "support/agreement.h"
#include "support/fixture.h"

namespace dsv4::test {
namespace {

struct Verified {
  int64_t position, proposed, accepted;
  bool operator==(const Verified&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Verified& v) {
  return out << v.position << ": " << v.accepted << " of " << v.proposed;
}

struct Generated {
  std::vector<TokenId> ids;
  std::vector<Verified> verified;
};

// `count` tokens behind the prompt, and what was drafted on the way.
Generated Generate(Engine& engine, std::span<const TokenId> prompt, int64_t count, const SamplingParams& params) {
  Generated run;
  auto session = engine.NewSession().value();
  auto sampler = Sampler::Create(params, engine.info().vocab_size).value();
  std::vector<float> logits;
  EXPECT_TRUE(session->Append(prompt, LogitRows::kLast, &logits).ok());
  run.ids.push_back(sampler->Sample(logits).value().id);
  DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = run.ids[0], .max_tokens = count - 1};
  item.on_verification = [&](const Verification& v) {
    run.verified.push_back({v.position, static_cast<int64_t>(v.proposed.size()), v.accepted});
  };
  const Status status = engine.Decode({&item, 1}, [&](size_t, const SampledToken& token) {
    run.ids.push_back(token.id);
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return run;
}

// What the fixture says: drafts for positions behind its last token count as not accepted.
std::vector<Verified> Expected(const std::string& dir, const std::string& k, int64_t drafts) {
  const Array at = ReferenceArray(dir, "spec_positions." + k), accepted = ReferenceArray(dir, "spec_accepted." + k);
  const Array proposed = drafts == 0 ? ReferenceArray(dir, "spec_proposed." + k) : Array{};
  std::vector<Verified> all;
  for (size_t i = 0; i < at.i32.size(); ++i) {
    const int64_t some = drafts == 0 ? proposed.i32[i] : drafts;
    if (some > 0) all.push_back({at.i32[i], some, accepted.i32[i]});
  }
  return all;
}

// `drafts` a step, or as many as are likelier than `threshold`.
void ExpectAcceptedCounts(const std::string& dir, Speculate module, const std::string& k, int64_t drafts,
                          float threshold) {
  const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
  const std::vector<TokenId> greedy = ReferenceArray(dir, "greedy_ids").i32;
  EngineOptions options = ExactOptions(dir);
  options.speculate = module;
  options.draft_tokens = drafts;
  options.draft_threshold = threshold;
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const auto count = static_cast<int64_t>(greedy.size());
  Generated run = Generate(*engine, prompt, count + kMaxDraftTokens + 1, {.temperature = 0});
  ASSERT_GE(static_cast<int64_t>(run.ids.size()), count);
  EXPECT_EQ(std::vector<TokenId>(run.ids.begin(), run.ids.begin() + count), greedy);
  const int64_t last = static_cast<int64_t>(prompt.size()) + count - 1;
  std::erase_if(run.verified, [&](const Verified& v) { return v.position + 1 >= last; });
  for (Verified& v : run.verified) v.accepted = std::min(v.accepted, last - v.position - 1);
  EXPECT_EQ(run.verified, Expected(dir, k, threshold > 0 ? 0 : drafts)) << "k " << k;
}

TEST(ModelDrafts, MtpAcceptsWhatTheReferenceAccepts) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  for (const int64_t k : {1, 2, 3}) ExpectAcceptedCounts(dir, Speculate::kMtp, std::to_string(k), k, 0);
}

TEST(ModelDrafts, DsparkAcceptsWhatTheReferenceAccepts) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-dspark");
  for (const int64_t k : {1, 2, 5}) ExpectAcceptedCounts(dir, Speculate::kDspark, std::to_string(k), k, 0);
  ExpectAcceptedCounts(dir, Speculate::kAuto, "cut", 5, 0.3f);
}

// Sampled, in batches of one, at every number of drafts, with rounded rows: the tokens are those without drafts.
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
      options.speculate = Speculate::kAuto;
      options.draft_tokens = k;
      options.draft_threshold = 0;
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
  options.speculate = Speculate::kDspark;
  const auto engine = Engine::Load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.status().message(), testing::HasSubstr("no DSpark module"));
  EXPECT_THAT(engine.status().message(), testing::HasSubstr("--speculate"));
}

// For measurements: the module that was asked for, of the released shape.
TEST(ModelDrafts, ASyntheticModelGetsWhatIsAskedFor) {
  for (const Speculate module : {Speculate::kMtp, Speculate::kDspark}) {
    EngineOptions options;
    options.synthetic = {.shape = "nano", .num_layers = 3};
    options.num_threads = 2;
    const auto off = LoadOrFail(options);
    options.speculate = module;
    options.draft_threshold = 0;
    const auto engine = LoadOrFail(options);
    ASSERT_TRUE(off != nullptr && engine != nullptr);
    const std::vector<TokenId> prompt = {5, 900, 31, 7, 5, 900};
    const SamplingParams sampling{.temperature = 1, .seed = 5};
    const Generated run = Generate(*engine, prompt, 12, sampling);
    EXPECT_EQ(run.ids, Generate(*off, prompt, 12, sampling).ids);
    EXPECT_FALSE(run.verified.empty());
  }
}

// A snapshot carries the module's rings: drafts go on as they would have.
TEST(ModelDrafts, ASnapshotKeepsWhatTheyNeed) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
  EngineOptions options = ExactOptions(dir);
  options.speculate = Speculate::kMtp;
  options.draft_tokens = 3;
  options.draft_threshold = 0;
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
