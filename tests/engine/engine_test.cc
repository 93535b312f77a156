// Errors and limits of Engine and Session: each error is one clear line, and nothing changes.

#include <limits>

#include "base/available_memory.h"
#include "support/fixture.h"

namespace dsv4::test {
namespace {

using testing::Test;

class EngineApi : public Test {
 protected:
  void SetUp() override {
    const std::string dir = FixtureDir("flash-nvfp4");
    if (dir.empty()) GTEST_SKIP() << "fixture flash-nvfp4 is not on this machine";
    options_.model_dir = dir;
    options_.num_threads = 1;
    options_.max_context = 40;
    engine_ = LoadOrFail(options_);
    ASSERT_NE(engine_, nullptr);
    session_ = std::move(engine_->NewSession()).value();
  }
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
  std::vector<float> logits_;
};

TEST_F(EngineApi, TokenIdsOutsideTheVocabularyAreRefused) {
  for (const TokenId bad : {-1, 512, std::numeric_limits<TokenId>::max(), std::numeric_limits<TokenId>::min()}) {
    const std::vector<TokenId> tokens = {1, 2, bad};
    const Status status = session_->Append(tokens, LogitRows::kLast, &logits_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::to_string(bad)), std::string::npos) << status.message();
    EXPECT_TRUE(session_->tokens().empty());
  }
}

TEST_F(EngineApi, EmptyStepsAndMissingPlacesAreRefused) {
  const std::vector<TokenId> tokens = {1};
  EXPECT_EQ(session_->Append({}, LogitRows::kLast, &logits_).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session_->Append(tokens, LogitRows::kLast, nullptr).code(), StatusCode::kInvalidArgument);
  const StepItem none{.session = nullptr, .tokens = tokens, .logits = &logits_};
  EXPECT_EQ(engine_->Step({&none, 1}).code(), StatusCode::kInvalidArgument);
  const StepItem item{.session = session_.get(), .tokens = tokens, .logits = &logits_};
  const std::vector<TokenId> two = {1, 2};
  const StepItem more{.session = session_.get(), .tokens = two, .logits = &logits_, .prompt_tokens = 1};
  EXPECT_EQ(engine_->Step({&more, 1}).code(), StatusCode::kInvalidArgument) << "more tokens than its prompt has";
  const std::vector<StepItem> twice = {item, item};
  EXPECT_EQ(engine_->Step(twice).code(), StatusCode::kInvalidArgument);
  auto other = LoadOrFail(options_);
  EXPECT_EQ(other->Step({&item, 1}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(session_->tokens().empty());
}

TEST_F(EngineApi, TheContextLimitHoldsAndLosesNothing) {
  const std::vector<TokenId> tokens(38, 7);
  ASSERT_TRUE(session_->Append(tokens, LogitRows::kLast, &logits_).ok());
  const std::vector<TokenId> three = {1, 2, 3};
  const Status status = session_->Append(three, LogitRows::kLast, &logits_);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("40"), std::string::npos) << status.message();
  EXPECT_EQ(session_->tokens().size(), 38u);
  EXPECT_TRUE(session_->Append({three.data(), 2}, LogitRows::kLast, &logits_).ok());
  EXPECT_EQ(session_->Append({three.data(), 1}, LogitRows::kLast, &logits_).code(), StatusCode::kResourceExhausted);
}

TEST_F(EngineApi, ACancelledPrefillKeepsWholeChunks) {
  options_.prefill_chunk = 8;
  engine_ = LoadOrFail(options_);
  session_ = std::move(engine_->NewSession()).value();
  const std::vector<TokenId> tokens(30, 3);
  const Status status = session_->Append(tokens, LogitRows::kLast, &logits_,
                                         [](const Progress& p) { return p.done < 16; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(session_->tokens().size(), 16u);
}

TEST_F(EngineApi, MemoryGrowsWithUseAndComesBack) {
  options_.max_context = 0;
  engine_ = LoadOrFail(options_);
  session_ = std::move(engine_->NewSession()).value();
  const int64_t empty = session_->memory_bytes();
  const std::vector<TokenId> tokens(600, 3);
  ASSERT_TRUE(session_->Append(tokens, LogitRows::kNone, nullptr).ok());
  EXPECT_GT(session_->memory_bytes(), empty);
  session_->Reset();
  EXPECT_EQ(session_->memory_bytes(), empty);
}

TEST_F(EngineApi, BadOptionsAreRefusedByName) {
  const auto load = [&](auto change, const std::string& what) {
    EngineOptions options = options_;
    change(options);
    auto engine = Engine::Load(options);
    ASSERT_FALSE(engine.ok());
    EXPECT_NE(engine.status().message().find(what), std::string::npos) << engine.status().message();
    EXPECT_EQ(engine.status().message().find('\n'), std::string::npos);
  };
  load([](EngineOptions& o) { o.device = "cuda:99"; }, "cuda:99");
  load([](EngineOptions& o) { o.device = "tpu"; }, "tpu");
  load([](EngineOptions& o) { o.device = "cuda:x"; }, "cuda:x");
  load([](EngineOptions& o) { o.device = "cuda:"; }, "cuda:");
  load([](EngineOptions& o) { o.num_threads = -1; }, "-1");
  load([](EngineOptions& o) { o.num_threads = 1 << 20; }, "1048576");
  load([](EngineOptions& o) { o.prefill_chunk = -1; }, "prefill chunk -1");
  load([](EngineOptions& o) { o.max_context = -5; }, "-5");
  load([](EngineOptions& o) { o.model_dir = "/does/not/exist"; }, "/does/not/exist");
}

// A refused model is not allocated, so the test needs no memory.
TEST(SyntheticModel, ThatDoesNotFitIsToldHowManyLayersDo) {
  const int64_t available = AvailableMemory();
  if (available == 0 || available > int64_t{600} << 30) GTEST_SKIP() << "all of Pro's layers might fit";
  EngineOptions options;
  options.synthetic.shape = "pro";
  options.num_threads = 1;
  options.max_context = 4096;
  const auto refusal = [&](int64_t layers) {
    options.synthetic.num_layers = layers;
    const auto engine = Engine::Load(options);
    return engine.ok() ? std::string() : engine.status().message();
  };
  const std::string all = refusal(0);
  EXPECT_NE(all.find("does not fit"), std::string::npos) << all;
  EXPECT_EQ(all.find('\n'), std::string::npos);
  const std::string use = "; use --layers ";
  const size_t hint = all.find(use);
  if (hint == std::string::npos) {
    EXPECT_NE(all.find("; use a smaller --prefill-chunk or close other programs"), std::string::npos) << all;
    EXPECT_NE(refusal(1).find("does not fit"), std::string::npos);
    return;
  }
  const int64_t layers = std::stoll(all.substr(hint + use.size()));
  EXPECT_EQ(all.substr(hint), use + std::to_string(layers));
  EXPECT_GE(layers, 1);
  EXPECT_LT(layers, 50);
  // not + 1: other programs may just have ended
  EXPECT_NE(refusal(layers + 2).find("does not fit"), std::string::npos);
}

}  // namespace
}  // namespace dsv4::test
