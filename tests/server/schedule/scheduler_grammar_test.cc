// The scheduler with grammars that restrict a sequence or let it wait.
#include "server/schedule/scheduler_fixture.h"
#include "server/structured/grammar.h"

namespace dsv4::server {
namespace {

// A text of even ids, next to an unrestricted one.
TEST_F(SchedulerTest, AGrammarHoldsItsOwnSequenceOnly) {
  struct EvenOnly : GrammarMatcher {
    explicit EvenOnly(int64_t vocab) : bits(static_cast<size_t>(vocab + 31) / 32, 0x55555555u) {}
    std::span<const uint32_t> Allowed() override { return bits; }
    bool Accept(TokenId id) override { return id % 2 == 0; }
    bool AcceptText(std::string_view) override { return true; }
    void Rollback(size_t) override {}
    bool complete() const override { return false; }
    const Status& status() const override { return fine; }
    const std::vector<uint32_t> bits;
    const Status fine;
  };
  struct Even : Grammar {
    explicit Even(int64_t v) : vocab(v) {}
    std::unique_ptr<GrammarMatcher> NewMatcher(CancelFlag) const override { return std::make_unique<EvenOnly>(vocab); }
    int64_t vocab;
  };
  Start();
  GenerationParams params;
  params.content_grammar = std::make_shared<Even>(NanoTokenizer().vocab_size());
  params.sampling.logit_bias = {{402, 5.0f}};  // without 401, 403, ... the first even id remains, except for this bias
  params.sampling.top_logprobs = 1;
  auto held = Make({{400}}, 40, params);
  std::vector<OutputToken> tokens;
  const auto inner = held->job->on_output;
  held->job->on_output = [&](std::vector<StepOutput>& outputs) {
    for (const StepOutput& o : outputs) tokens.insert(tokens.end(), o.tokens.begin(), o.tokens.end());
    inner(outputs);
  };
  const auto free = Submit({{600}}, 40);
  ASSERT_TRUE(scheduler_->Submit(held->job).ok());
  Wait(free);
  Wait(held);
  EXPECT_EQ(free->tokens[0], Counting(601, 40));
  EXPECT_EQ(held->tokens[0], Ids(40, 402));
  for (const OutputToken& t : tokens)
    EXPECT_LT(t.logprob, -10);  // the model's own probabilities: it would choose 401, 403
  for (const OutputToken& t : tokens) EXPECT_EQ(t.top[0].id % 2, 1);
}

// A grammar whose masks are ready once the gate is open, until it exceeds its limit.
struct Slow : Grammar {
  struct Matcher : GrammarMatcher {
    Matcher(const Slow& its_grammar, CancelFlag flag) : grammar(its_grammar), cancelled(std::move(flag)) {
      ++grammar.live;
    }
    ~Matcher() override { --grammar.live; }
    std::span<const uint32_t> Allowed() override {
      ++grammar.asked;
      while (!grammar.open && !*cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (grammar.broken) state = InvalidArgument("too much work");
      return {};
    }
    bool Accept(TokenId) override { return true; }
    void Rollback(size_t) override {}
    bool AcceptText(std::string_view) override { return true; }
    bool complete() const override { return false; }
    const Status& status() const override { return state; }
    const Slow& grammar;
    const CancelFlag cancelled;
    Status state;
  };
  std::unique_ptr<GrammarMatcher> NewMatcher(CancelFlag flag) const override {
    return std::make_unique<Matcher>(*this, flag);
  }
  std::atomic<bool> open = false, broken = false;
  mutable std::atomic<int> asked = 0, live = 0;
};

TEST_F(SchedulerTest, ASlowGrammarDelaysItsOwnSequenceOnly) {
  Start();
  const auto slow = std::make_shared<Slow>();
  GenerationParams params;
  params.content_grammar = slow;
  const auto held = Submit({{400}}, 20, params), left = Submit({{500}}, 20, params);
  for (int i = 0; i < 10000 && slow->asked < 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto free = Submit({{600}}, 300);
  Wait(free);
  EXPECT_EQ(free->tokens[0], Counting(601, 300));
  EXPECT_EQ(held->tokens[0].size(), 0u);
  // A sequence whose client leaves ends at once, whatever its grammar does.
  scheduler_->Cancel(left->job);
  Wait(left);
  EXPECT_EQ(left->finish[0], FinishReason::kCancelled);
  slow->open = true;
  Wait(held);
  EXPECT_EQ(held->tokens[0], Counting(401, 20));
  // A sequence whose grammar exceeds its limit ends with the reason.
  slow->broken = true;
  const auto broken = Submit({{400}}, 20, params);
  Wait(broken);
  EXPECT_EQ(broken->finish[0], FinishReason::kError);
  EXPECT_EQ(broken->error.message(), "too much work");
  WaitIdle();
  for (int i = 0; i < 10000 && slow->live > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(slow->live, 0);
}

}  // namespace
}  // namespace dsv4::server
