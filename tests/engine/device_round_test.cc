// Rounds whose tokens a device draws, with the CPU as that device: what comes out is what the host draws one by one.
#include "engine/device_round.h"

#include "engine/drafts_fixture.h"

namespace dsv4::test {
namespace {

class DeviceRoundTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
    engine_ = LoadOrFail({.model_dir = dir, .device = GetParam(), .num_threads = 1, .draft_threshold = 0});
    ASSERT_NE(engine_, nullptr);
    decode_ = std::make_unique<DraftedDecode>(*engine_);
    for (DraftWanted& w : wanted_) w.sampling.top_logprobs = -1;  // these the host draws
    plain_ = decode_->Run(wanted_, nullptr, 0);
    decode_->UseDecode(AsOnADevice(*engine_));
  }
  std::unique_ptr<Oracle> MakeOracle(Guess guess) {
    return std::make_unique<Oracle>(guess, plain_, engine_->info().vocab_size);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DraftedDecode> decode_;
  std::vector<DraftWanted> wanted_ = EveryOption(3);
  std::vector<DraftOutcome> plain_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceRoundTest, testing::Values("cpu", "cpu*2"), [](const auto& instance) {
  return std::string(instance.param) == "cpu" ? "One" : "Two";
});

TEST_P(DeviceRoundTest, DraftsChangeNothingOfABatch) {
  for (const Guess guess : {Guess::kRight, Guess::kWrong, Guess::kHalf, Guess::kRandom}) {
    const int64_t most = guess == Guess::kHalf ? 7 : guess == Guess::kRight ? 5 : 2;
    EXPECT_EQ(decode_->Differences(wanted_, plain_, MakeOracle(guess), most), "") << static_cast<int>(guess);
    const auto& oracle = dynamic_cast<Oracle&>(*decode_->engine().drafting().drafter);
    EXPECT_GT(oracle.proposed, 0);
    if (guess == Guess::kRight || guess == Guess::kWrong) {
      EXPECT_EQ(oracle.all_accepted, guess == Guess::kRight ? oracle.proposed : 0);
    }
  }
}

// Between drafts, which lookup finds here and there, steps follow each other without the host.
TEST_P(DeviceRoundTest, LookupAmongStepsWithoutDrafts) {
  EXPECT_EQ(decode_->Differences(wanted_, plain_, std::make_unique<LookupDrafter>(), 5), "");
}

// More tokens than are counted beside a sampler's counts on the device.
TEST_P(DeviceRoundTest, CountsAreBroughtAnew) {
  const std::vector<DraftWanted> wanted = {
      {.prompt = 9,
       .sampling = {.temperature = 1, .presence_penalty = 1, .frequency_penalty = 0.5f, .seed = 3},
       .max_tokens = 160}};
  decode_->UseDecode({});
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  decode_->UseDecode(AsOnADevice(*engine_));
  EXPECT_EQ(decode_->Differences(wanted, plain,
                                 std::make_unique<Oracle>(Guess::kHalf, plain, engine_->info().vocab_size), 5),
            "");
}

TEST_P(DeviceRoundTest, BannedTokensAreAnError) {
  const int64_t v = engine_->info().vocab_size;
  auto session = std::move(engine_->NewSession()).value();
  auto sampler = std::move(Sampler::Create({.temperature = 0}, v)).value();
  const std::vector<uint32_t> none(static_cast<size_t>((v + 31) / 32), 0);
  DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = 3, .max_tokens = 4,
                  .allowed = [&none] { return std::span<const uint32_t>(none); }};
  std::vector<LiveItem> live = LiveItemsOf({&item, 1});
  RankDecodeSteps steps(decode_->engine().ranks(), v);
  DeviceRound step(steps, engine_->info());
  const TokenId tokens[] = {3, 4};
  const RoundSequence sequence{.live = live.data(), .item = &item, .tokens = tokens};
  ASSERT_TRUE(step.Run({&sequence, 1}).ok());
  EXPECT_EQ(step.Draw(0, 0).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dsv4::test
