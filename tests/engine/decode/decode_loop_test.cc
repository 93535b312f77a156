// The loop in which a device draws the tokens, with the CPU as that device.
#include "engine/decode/decode_loop.h"

#include <memory>
#include <vector>

#include "engine/engine_impl.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

struct Wanted {
  int64_t prompt = 0;
  SamplingParams sampling = {};
  int64_t max_tokens = 0;
  bool masked = false;           // even ids only
  int64_t ends_after = 1 << 20;  // draws, by on_token
};

const std::vector<Wanted> kWanted = {
    {.prompt = 5, .sampling = {.temperature = 0}, .max_tokens = 7},
    {.prompt = 250,
     .sampling = {.temperature = 0.8f, .top_p = 0.9f, .repeat_penalty = 1.2f, .presence_penalty = 0.5f},
     .max_tokens = 12},
    {.prompt = 17,
     .sampling = {.temperature = 1.0f, .top_k = 40, .logit_bias = {{5, 3.0f}, {9, -100.0f}}},
     .max_tokens = 30,
     .ends_after = 4},
    {.prompt = 40, .sampling = {.temperature = 0.7f}, .max_tokens = 9},
};

class DecodeLoopTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    engine_ = LoadOrFail(
        {.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano", .device = GetParam(), .num_threads = 1});
    ASSERT_NE(engine_, nullptr);
  }
  EngineImpl& impl() { return dynamic_cast<EngineImpl&>(*engine_); }

  // The tokens that `decode` draws, followed by the tokens of the sessions.
  template <typename Decode>
  std::vector<std::vector<TokenId>> Run(std::vector<Wanted> wanted, const Decode& decode) {
    const int64_t v = engine_->info().vocab_size;
    std::vector<uint32_t> even(static_cast<size_t>((v + 31) / 32), 0x55555555u);
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<DecodeItem> items;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const std::vector<TokenId> prompt = SomeTokens(wanted[i].prompt, i + 1, v);
      sessions.push_back(std::move(engine_->NewSession()).value());
      EXPECT_TRUE(sessions.back()->Append(prompt, LogitRows::kNone, nullptr).ok());
      wanted[i].sampling.seed = 100 + i;
      samplers.push_back(std::move(Sampler::Create(wanted[i].sampling, v)).value());
      samplers.back()->AddPrompt(prompt);
      items.push_back({.session = sessions.back().get(),
                       .sampler = samplers.back().get(),
                       .first = prompt[0],
                       .max_tokens = wanted[i].max_tokens});
      if (wanted[i].masked) items.back().allowed = [&even] { return std::span<const uint32_t>(even); };
    }
    std::vector<std::vector<TokenId>> out(items.size());
    const Status status = decode(items, [&](size_t item, const SampledToken& token) {
      out[item].push_back(token.id);
      return static_cast<int64_t>(out[item].size()) < wanted[item].ends_after;
    });
    EXPECT_TRUE(status.ok()) << status.message();
    for (const auto& session : sessions) out.push_back(session->tokens());
    return out;
  }
  std::vector<std::vector<TokenId>> OnHost(const std::vector<Wanted>& wanted) {
    return Run(wanted,
               [this](std::span<const DecodeItem> items, const TokenFn& fn) { return engine_->Decode(items, fn); });
  }
  std::vector<std::vector<TokenId>> InLoop(const std::vector<Wanted>& wanted) {
    RankDecodeSteps steps(impl().ranks(), engine_->info().vocab_size);
    return Run(wanted, [&](std::span<const DecodeItem> items, const TokenFn& fn) {
      std::vector<LiveItem> live = LiveItemsOf(items);
      return DecodeLoop(steps, engine_->info(), items, fn, live).Run();
    });
  }

  std::unique_ptr<Engine> engine_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, DecodeLoopTest, testing::Values("cpu", "cpu*2"),
                         [](const auto& instance) { return std::string(instance.param) == "cpu" ? "One" : "Two"; });

TEST_P(DecodeLoopTest, DrawsWhatStepAndSampleDraw) {
  EXPECT_EQ(InLoop(kWanted), OnHost(kWanted));
  EXPECT_EQ(InLoop({kWanted[1]}), OnHost({kWanted[1]}));
}

TEST_P(DecodeLoopTest, DrawsWhatMasksAllow) {
  std::vector<Wanted> wanted = kWanted;
  wanted[1].masked = wanted[3].masked = true;
  const auto drawn = InLoop(wanted);
  EXPECT_EQ(drawn, OnHost(wanted));
  for (const TokenId id : drawn[1]) EXPECT_EQ(id % 2, 0);
}

// A step is queued in advance: its effect on a sequence that had ended must not be visible.
TEST_P(DecodeLoopTest, SequencesGoOnAfterTheirEnd) {
  const auto run = [this](bool in_loop) {
    return Run(kWanted, [&](std::span<const DecodeItem> items, const TokenFn& fn) {
      RankDecodeSteps steps(impl().ranks(), engine_->info().vocab_size);
      Status status;
      for (int round = 0; round < 2 && status.ok(); ++round) {  // the second begins with the same token for all
        std::vector<DecodeItem> again(items.begin(), items.end());
        if (round == 1)
          for (DecodeItem& item : again) item.first = 77;
        std::vector<LiveItem> live = LiveItemsOf(again);
        status = in_loop ? DecodeLoop(steps, engine_->info(), again, fn, live).Run() : engine_->Decode(again, fn);
      }
      return status;
    });
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_P(DecodeLoopTest, BannedTokensAreAnError) {
  RankDecodeSteps steps(impl().ranks(), engine_->info().vocab_size);
  auto session = std::move(engine_->NewSession()).value();
  auto sampler = std::move(Sampler::Create({.temperature = 0}, engine_->info().vocab_size)).value();
  const std::vector<uint32_t> none(static_cast<size_t>((engine_->info().vocab_size + 31) / 32), 0);
  std::vector<DecodeItem> items = {{.session = session.get(), .sampler = sampler.get(), .first = 3, .max_tokens = 1}};
  items[0].allowed = [&none] { return std::span<const uint32_t>(none); };
  const TokenFn fn = [](size_t, const SampledToken&) { return true; };
  std::vector<LiveItem> live = LiveItemsOf(items);
  EXPECT_EQ(DecodeLoop(steps, engine_->info(), items, fn, live).Run().code(), StatusCode::kInvalidArgument);
}

// After a pause the sequences continue from its state, here with another loop.
TEST_P(DecodeLoopTest, GoesOnBehindAPause) {
  const auto in_parts = Run(kWanted, [this](std::span<const DecodeItem> items, const TokenFn& fn) {
    RankDecodeSteps steps(impl().ranks(), engine_->info().vocab_size);
    std::vector<LiveItem> live = LiveItemsOf(items);
    Status status;
    for (int64_t n = 0; !live.empty() && status.ok(); ++n) {
      int64_t asked = 0;
      status = DecodeLoop(steps, engine_->info(), items, fn, live).Run([&] { return ++asked > n % 4; });
    }
    return status;
  });
  EXPECT_EQ(in_parts, OnHost(kWanted));
}

}  // namespace
}  // namespace dsv4::test
