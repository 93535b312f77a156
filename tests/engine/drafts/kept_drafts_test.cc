// Data of a draft module in steps without drafts: it is left out, and computed later, before drafts begin again.
#include <string>
#include <vector>

#include "engine/drafts/drafts_fixture.h"

namespace dsv4::test {
namespace {

struct Way {
  Speculate module;
  bool in_rounds;  // as if a device drew the tokens
};

class KeptDrafts : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    engine_ = Load(GetParam().module);
    ASSERT_NE(engine_, nullptr);
    session_ = std::move(engine_->NewSession()).value();
    ASSERT_TRUE(session_->Append(prompt_, LogitRows::kNone, nullptr).ok());
  }
  std::unique_ptr<Engine> Load(Speculate module) {
    return LoadOrFail({.model_dir = DSV4_SOURCE_DIR "/models/nano", .num_threads = 1, .drafts = {.speculate = module}});
  }
  Drafting& drafting() { return dynamic_cast<EngineImpl&>(*engine_).drafting(); }
  SessionImpl& impl() { return static_cast<SessionImpl&>(*session_); }

  // Tokens of a session.
  std::vector<TokenId> Decode(Engine& engine, Session& session, int64_t count) {
    const auto sampler = std::move(Sampler::Create({.temperature = 1, .seed = 5}, engine.info().vocab_size)).value();
    const DecodeItem item{.session = &session, .sampler = sampler.get(), .first = 9, .max_tokens = count};
    std::vector<TokenId> ids;
    const TokenFn on_token = [&](size_t, const SampledToken& token) { return ids.push_back(token.id), true; };
    const Status status = GetParam().in_rounds ? AsOnADevice(engine)({&item, 1}, on_token)
                                               : engine.Decode({&item, 1}, on_token);
    EXPECT_TRUE(status.ok()) << status.message();
    return ids;
  }
  // Ends the trial as if all drafts had been rejected.
  void EndTrial() {
    drafting().policy.AddStep(1, 1, 1e-3);
    drafting().policy.AddGain(1, 0, 1);
    ASSERT_FALSE(drafting().policy.Wants(1));
  }
  // For the position after the session's tokens.
  Draft Guess(Session& session) {
    std::vector<Draft> drafts(1);
    drafts[0].session = &static_cast<SessionImpl&>(session);
    drafts[0].next = 11;
    drafts[0].most = 3;
    EXPECT_TRUE(drafting().drafter->Propose(drafts).ok());
    return drafts[0];
  }

  const std::vector<TokenId> prompt_ = SomeTokens(140, 3, 4000);
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
};
INSTANTIATE_TEST_SUITE_P(Modules, KeptDrafts,
                         testing::Values(Way{Speculate::kMtp, false}, Way{Speculate::kMtp, true},
                                         Way{Speculate::kDspark, false}, Way{Speculate::kDspark, true}),
                         [](const auto& instance) {
                           return std::string(kSpeculateNames[static_cast<size_t>(instance.param.module)]) +
                                  (instance.param.in_rounds ? "_rounds" : "");
                         });

TEST_P(KeptDrafts, AreLeftOutWhereNobodyDraftsAndMadeUpByAWindow) {
  EXPECT_TRUE(impl().can_draft());
  EndTrial();
  const std::vector<TokenId> ids = Decode(*engine_, *session_, 30);
  EXPECT_FALSE(impl().can_draft());
  const auto copy = std::move(engine_->NewSession(*std::move(session_->Snapshot()).value())).value();
  EXPECT_FALSE(static_cast<SessionImpl&>(*copy).can_draft());
  const std::vector<TokenId> more = SomeTokens(128, 4, 4000);
  ASSERT_TRUE(session_->Append(std::span(more).first(127), LogitRows::kNone, nullptr).ok());
  EXPECT_FALSE(impl().can_draft());
  ASSERT_TRUE(session_->Append(std::span(more).last(1), LogitRows::kNone, nullptr).ok());
  EXPECT_TRUE(impl().can_draft());

  const auto kept = std::move(engine_->NewSession()).value();
  ASSERT_TRUE(kept->Append(session_->tokens(), LogitRows::kNone, nullptr).ok());
  const Draft expected = Guess(*kept), got = Guess(*session_);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.confidence, expected.confidence);
}

TEST_P(KeptDrafts, BeginAgain) {
  const auto off = Load(Speculate::kOff);
  ASSERT_NE(off, nullptr);
  const auto session = std::move(off->NewSession()).value();
  ASSERT_TRUE(session->Append(prompt_, LogitRows::kNone, nullptr).ok());
  EndTrial();
  const int64_t count = DraftPolicy::kFirstWait + 128 + 20;
  EXPECT_EQ(Decode(*engine_, *session_, count), Decode(*off, *session, count));
  EXPECT_GT(engine_->draft_counts().verifications, 0);
}

}  // namespace
}  // namespace dsv4::test
