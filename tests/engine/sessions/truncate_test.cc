// Session::Truncate: the next tokens have the same bits as if the removed tokens had never been there.
#include "dsv4/snapshot.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

class Truncate : public ::testing::Test {
 protected:
  void SetUp() override {
    DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
    EngineOptions options;
    options.model_dir = dir;
    options.num_threads = 2;
    engine_ = LoadOrFail(options);
    ASSERT_NE(engine_, nullptr);
    ids_ = SomeTokens(310, 4, engine_->info().vocab_size);
    all_ = AllLogits(*engine_, ids_);
  }
  std::span<const TokenId> Ids(size_t begin, size_t end) const { return std::span(ids_).subspan(begin, end - begin); }
  std::vector<TokenId> Wrong(size_t begin, size_t end) const {
    std::vector<TokenId> wrong(ids_.begin() + static_cast<ptrdiff_t>(begin),
                               ids_.begin() + static_cast<ptrdiff_t>(end));
    for (TokenId& id : wrong) id = (id + 1) % static_cast<TokenId>(engine_->info().vocab_size);
    return wrong;
  }
  // Compares ids [at, end) after the session's tokens.
  void ExpectGoesOn(Session& session, size_t end, const std::string& what) {
    const size_t v = static_cast<size_t>(engine_->info().vocab_size), at = session.tokens().size();
    std::vector<float> logits;
    ASSERT_TRUE(session.Append(Ids(at, end), LogitRows::kAll, &logits).ok()) << what;
    EXPECT_TRUE(std::equal(logits.begin(), logits.end(), all_.begin() + static_cast<ptrdiff_t>(at * v))) << what;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<TokenId> ids_;
  std::vector<float> all_;
};

TEST_F(Truncate, GoesOnAsIfTheTokensHadNeverBeenThere) {
  // Around rows of ratio 4 and 128, the window's wrap and pages.
  for (const size_t keep : {1, 4, 127, 129, 136, 255, 256, 257}) {
    auto session = std::move(engine_->NewSession()).value();
    ASSERT_TRUE(session->Append(Ids(0, keep), LogitRows::kNone, nullptr).ok());
    ASSERT_TRUE(session->Append(Wrong(keep, keep + 5), LogitRows::kNone, nullptr).ok());
    for (size_t i = 0; i < 3; ++i)
      ASSERT_TRUE(session->Append(Wrong(keep + 5 + i, keep + 6 + i), LogitRows::kNone, nullptr).ok());
    ASSERT_TRUE(session->Truncate(static_cast<int64_t>(keep + 2)).ok());  // in two parts
    ASSERT_TRUE(session->Truncate(static_cast<int64_t>(keep)).ok());
    EXPECT_EQ(session->tokens().size(), keep);
    ExpectGoesOn(*session, keep + 40, "cut to " + std::to_string(keep));
  }
}

TEST_F(Truncate, SnapshotsStayAsTheyAre) {
  for (const size_t cut : {256, 259}) {
    auto session = std::move(engine_->NewSession()).value();
    ASSERT_TRUE(session->Append(Ids(0, cut), LogitRows::kNone, nullptr).ok());
    const auto snapshot = std::move(session->Snapshot()).value();
    const size_t keep = cut - 6;
    ASSERT_TRUE(session->Truncate(static_cast<int64_t>(keep)).ok());
    ASSERT_TRUE(session->Append(Wrong(keep, keep + 20), LogitRows::kNone, nullptr).ok());
    ExpectGoesOn(*std::move(engine_->NewSession(*snapshot)).value(), cut + 30,
                 "from a snapshot of " + std::to_string(cut));
    // A session from the snapshot can also be truncated.
    auto again = std::move(engine_->NewSession(*snapshot)).value();
    ASSERT_TRUE(again->Truncate(static_cast<int64_t>(cut - 8)).ok());
    ExpectGoesOn(*again, cut + 30, "from a snapshot that is cut, of " + std::to_string(cut));
  }
  EXPECT_EQ(engine_->kv_bytes(), 0);
}

TEST_F(Truncate, RefusesWhatTheRingsNoLongerHold) {
  auto session = std::move(engine_->NewSession()).value();
  ASSERT_TRUE(session->Append(Ids(0, 300), LogitRows::kNone, nullptr).ok());
  const auto refused = [&](Session& of, int64_t tokens, const char* part) {
    const size_t before = of.tokens().size();
    const Status status = of.Truncate(tokens);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << tokens;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(of.tokens().size(), before);
  };
  refused(*session, 301, "cannot truncate a session of 300 tokens to 301");
  refused(*session, -1, "to -1");
  refused(*session, 291, "has had 300 tokens to 291: it can remove at most 8 of them");
  EXPECT_TRUE(session->Truncate(300).ok());
  EXPECT_TRUE(session->Truncate(294).ok());
  refused(*session, 291, "has had 300");  // removed tokens count
  const auto snapshot = std::move(session->Snapshot()).value();
  refused(*std::move(engine_->NewSession(*snapshot)).value(), 291, "has had 300");
  ExpectGoesOn(*session, 305, "after what was refused");
  EXPECT_TRUE(session->Truncate(297).ok());
  // Truncation to nothing always works.
  ASSERT_TRUE(session->Truncate(0).ok());
  EXPECT_TRUE(session->tokens().empty());
  ExpectGoesOn(*session, 50, "from the beginning");
}

}  // namespace
}  // namespace dsv4::test
