#include "engine/drafts/oracle_drafter.h"

#include <cmath>

#include "engine/drafts/lookup_drafter.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

// Proposes no drafts. Makes all tokens of a draft at once, and needs no host.
class Nothing : public Drafter {
 public:
  int64_t max_tokens() const override { return 7; }
  Status Propose(std::span<Draft> /*drafts*/) override { return {}; }
  bool makes_at_once() const override { return true; }
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override {
    confidence->resize(confidence->size() + static_cast<size_t>(tokens), 0.5f);
    return true;
  }
};

class OracleDrafterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_ = LoadOrFail({.model_dir = DSV4_SOURCE_DIR "/models/nano", .num_threads = 1});
    ASSERT_NE(engine_, nullptr);
    session_ = std::move(engine_->NewSession()).value();
  }

  SessionImpl& session() { return dynamic_cast<SessionImpl&>(*session_); }

  // A text of `count` tokens after the session's tokens.
  OracleDrafter Oracle(size_t count, double right, uint64_t seed = 1) {
    text_ = SomeTokens(static_cast<int64_t>(count), 5, 4000);
    KnownDrafts known{.acceptance = right, .seed = seed};
    known.texts.push_back({session_.get(), 0, text_});
    return {std::make_unique<Nothing>(), std::move(known), 4096};
  }

  // Tokens per verification with drafts of k.
  double TokensARound(OracleDrafter& oracle, size_t k) {
    const auto guesses = oracle.KnownOf(session()).tokens;
    size_t at = 0, rounds = 0;
    for (; at + k < guesses.size(); ++at, ++rounds) {
      for (size_t i = 0; i < k && guesses[at] == text_[at]; ++i) ++at;
    }
    return static_cast<double>(at) / static_cast<double>(rounds);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
  std::vector<TokenId> text_;
};

// Chance alone would be off by 2 % and more in one seed of three.
TEST_F(OracleDrafterTest, IsRightAsOftenAsIsToBeExpected) {
  for (const double right : {0.5, 0.7, 0.8}) {
    for (const size_t k : {1, 2, 3}) {
      const double expected = (1 - std::pow(right, k + 1)) / (1 - right);
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        OracleDrafter oracle = Oracle(1500, right, seed);
        EXPECT_NEAR(TokensARound(oracle, k) / expected, 1, 0.015) << right << ", " << k << ", " << seed;
      }
    }
  }
}

TEST_F(OracleDrafterTest, IsAlwaysRightOrNever) {
  OracleDrafter always = Oracle(100, 1), never = Oracle(100, 0);
  EXPECT_EQ(TokensARound(always, 3), 4);
  EXPECT_EQ(TokensARound(never, 3), 1);
}

// Rounds with a fixed number of drafts need no host if no other drafter makes them.
TEST_F(OracleDrafterTest, ForeseesAFixedNumberWhereNobodyMakesThem) {
  const auto foresees = [](std::unique_ptr<Drafter> inner, int64_t fixed, int64_t tokens) {
    KnownDrafts known{.tokens = fixed};
    OracleDrafter oracle(std::move(inner), std::move(known), 4096);
    std::vector<float> confidence;
    const bool does = oracle.Foresees(tokens, &confidence);
    EXPECT_EQ(std::ssize(confidence), does ? tokens : 0);
    return does;
  };
  EXPECT_TRUE(foresees(std::make_unique<LookupDrafter>(), 3, 3));
  EXPECT_FALSE(foresees(std::make_unique<LookupDrafter>(), 3, 4));
  EXPECT_FALSE(foresees(std::make_unique<LookupDrafter>(), 0, 3)) << "the policy decides";
  EXPECT_FALSE(foresees(std::make_unique<Nothing>(), 3, 3)) << "its price counts";
  EXPECT_TRUE(foresees(std::make_unique<Nothing>(), 0, 3));
}

// With any drafter, and for a draft at any position.
TEST_F(OracleDrafterTest, IsRightAtTheSamePlacesWithTheHostAndWithout) {
  OracleDrafter oracle = Oracle(60, 0.6);
  const auto known = oracle.KnownOf(session()).tokens;
  const std::vector<TokenId> foreseen(known.begin(), known.end());
  for (size_t begin = 0; begin < 50; ++begin) {
    Draft draft{.session = &session(), .next = 3, .most = 5};
    ASSERT_TRUE(oracle.Propose({&draft, 1}).ok());
    ASSERT_EQ(draft.tokens.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      const size_t at = begin + 1 + i;  // after the session's tokens and the next one
      EXPECT_EQ(draft.tokens[i] == text_[at], foreseen[at] == text_[at]) << at;
    }
    ASSERT_TRUE(session_->Append({&text_[begin], 1}, LogitRows::kNone, nullptr).ok());
  }
}

// It takes the time of the other drafter and drafts in its way, with its own confidence.
TEST_F(OracleDrafterTest, DraftsInTheWayOfAnother) {
  const OracleDrafter oracle = Oracle(10, 0.8);
  EXPECT_TRUE(oracle.makes_at_once());
  std::vector<float> confidence;
  EXPECT_TRUE(oracle.Foresees(3, &confidence));
  EXPECT_EQ(confidence, std::vector<float>(3, 0.8f));
}

// Tokens after the known text are also guessed.
TEST_F(OracleDrafterTest, GoesOnBehindTheText) {
  OracleDrafter oracle = Oracle(2, 1);
  Draft draft{.session = &session(), .next = 3, .most = 4};
  ASSERT_TRUE(oracle.Propose({&draft, 1}).ok());
  ASSERT_EQ(draft.tokens.size(), 4u);
  EXPECT_EQ(draft.tokens[0], text_[1]);
  for (const TokenId token : draft.tokens) EXPECT_TRUE(token >= 0 && token < 4096) << token;
}

}  // namespace
}  // namespace dsv4::test
