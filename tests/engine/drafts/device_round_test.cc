// Rounds whose tokens a device draws, with the CPU as that device. The result equals the tokens that the host draws one
// by one. The cases of all devices (draft_cases.h) test more.
#include "engine/drafts/device_round.h"

#include "engine/drafts/drafts_fixture.h"

namespace dsv4::test {
namespace {

class DeviceRoundTest : public DraftsOfAModel {};
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceRoundTest,
                         testing::Values(DraftedModel{"flash-nvfp4", "cpu", true},
                                         DraftedModel{"flash-nvfp4", "cpu*2", true}),
                         NameOf);

// The device draws the same tokens as the host.
TEST_P(DeviceRoundTest, DrawsWhatTheHostDraws) {
  const std::vector<DraftWanted> wanted = Options(3);
  decode_->UseDecode({});
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  decode_->UseDecode(AsOnADevice(*engine_));
  EXPECT_EQ(decode_->Differences(wanted, plain, nullptr, 0), "");
  EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kHalf, plain), 7), "");
  // Between drafts, which lookup finds at some places, steps follow each other without the host.
  EXPECT_EQ(decode_->Differences(wanted, plain, std::make_unique<LookupDrafter>(), 5), "");
}

// More tokens than a sampler's counts on the device can record.
TEST_P(DeviceRoundTest, CountsAreBroughtAnew) {
  const std::vector<DraftWanted> wanted = {
      {.prompt = 9,
       .sampling = {.temperature = 1, .presence_penalty = 1, .frequency_penalty = 0.5f, .seed = 3},
       .max_tokens = 160}};
  decode_->UseDecode({});
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  decode_->UseDecode(AsOnADevice(*engine_));
  EXPECT_EQ(decode_->Differences(wanted, plain, MakeOracle(Guess::kHalf, plain), 5), "");
}

TEST_P(DeviceRoundTest, BannedTokensAreAnError) {
  auto session = std::move(engine_->NewSession()).value();
  auto sampler = std::move(Sampler::Create({.temperature = 0}, vocab())).value();
  const std::vector<uint32_t> none(static_cast<size_t>((vocab() + 31) / 32), 0);
  DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = 3, .max_tokens = 4, .allowed = [&none] {
                    return std::span<const uint32_t>(none);
                  }};
  std::vector<LiveItem> live = LiveItemsOf({&item, 1});
  RankDecodeSteps steps(decode_->engine().ranks(), vocab());
  DeviceRound step(steps, engine_->info());
  const TokenId tokens[] = {3, 4};
  const RoundSequence sequence{.live = live.data(), .item = &item, .tokens = tokens};
  ASSERT_TRUE(step.Run({&sequence, 1}).ok());
  EXPECT_EQ(step.Draw(0, 0).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dsv4::test
