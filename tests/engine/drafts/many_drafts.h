// Drafts change nothing, over many seeds, lengths of drafts and sizes of batches: the same for every device, of models
// that the test program names (INSTANTIATE_TEST_SUITE_P).
#pragma once

#include <algorithm>
#include <cctype>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/drafts/drafts_fixture.h"

namespace dsv4::test {

struct ModelAndSeeds {
  const char* fixture;  // or nano
  const char* device;
  uint64_t seeds;
  Speculate module = Speculate::kOff;
  bool (*is_there)() = [] { return true; };  // the device
};

inline std::string NameOfSeeds(const testing::TestParamInfo<ModelAndSeeds>& instance) {
  std::string name = std::string(instance.param.fixture) + "_" + instance.param.device;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

class ManyDrafts : public ::testing::TestWithParam<ModelAndSeeds> {
 protected:
  // Who drafts: oracles that guess as Guess says, lookup, the model's own module.
  static constexpr uint64_t kLookup = 4, kModule = 5;

  void Load(float threshold) {
    const ModelAndSeeds& model = GetParam();
    if (!model.is_there()) GTEST_SKIP() << "no " << model.device << " that this build runs on";
    const std::string dir = std::string(model.fixture) == "nano" ? std::string(DSV4_SOURCE_DIR) + "/models/nano"
                                                                 : FixtureDir(model.fixture);
    if (dir.empty()) GTEST_SKIP() << "fixture " << model.fixture << " is not on this machine";
    engine_ = LoadOrFail({.model_dir = dir,
                          .device = model.device,
                          .num_threads = 1,
                          .drafts = {.speculate = model.module, .threshold = threshold}});
    ASSERT_NE(engine_, nullptr);
    decode_ = std::make_unique<DraftedDecode>(*engine_);
    module_ = std::move(decode_->engine().drafting().drafter);
  }

  uint64_t drafters() const { return module_ == nullptr ? kModule : kModule + 1; }

  // A GPU draws what asks for no log-probabilities: every other batch.
  std::vector<DraftWanted> Options(uint64_t seed) const {
    std::vector<DraftWanted> all = EveryOption(seed);
    if (decode_->engine().runner().on_host() || seed % 2 == 0) return all;
    for (DraftWanted& w : all) w.sampling.top_logprobs = -1;
    return all;
  }

  std::string Differences(uint64_t who, const std::vector<DraftWanted>& wanted, const std::vector<DraftOutcome>& plain,
                          int64_t most) {
    std::unique_ptr<Drafter> drafter;
    if (who < kLookup) {
      drafter = std::make_unique<Oracle>(static_cast<Guess>(who), plain, engine_->info().vocab_size);
    } else {
      drafter = who == kLookup ? std::make_unique<LookupDrafter>() : std::move(module_);
    }
    const std::string text = decode_->Differences(wanted, plain, std::move(drafter), most);
    if (who == kModule) module_ = std::move(decode_->engine().drafting().drafter);
    return text;
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DraftedDecode> decode_;
  std::unique_ptr<Drafter> module_;  // goes before the engine
};

// A sequence in a batch is what it is alone, so the first of a batch are also the runs of a smaller one.
TEST_P(ManyDrafts, ChangeNothing) {
  ASSERT_NO_FATAL_FAILURE(Load(/*threshold=*/0));
  if (IsSkipped()) return;
  for (uint64_t seed = 0; seed < GetParam().seeds; ++seed) {
    const std::vector<DraftWanted> all = Options(seed);
    const std::vector<DraftOutcome> plain = decode_->Run(all, nullptr, 0);
    for (uint64_t who = 0; who < drafters(); ++who) {
      const auto most = static_cast<int64_t>(1 + (seed + 3 * who) % 7);
      const auto batch = static_cast<std::ptrdiff_t>(1 + (3 * seed + 4 * who) % 10);
      const std::vector<DraftWanted> wanted(all.begin(), all.begin() + batch);
      const std::vector<DraftOutcome> expected(plain.begin(), plain.begin() + batch);
      EXPECT_EQ(Differences(who, wanted, expected, most), "")
          << "seed " << seed << ", drafter " << who << ", " << most << " tokens, " << batch << " sequences";
    }
  }
}

// With the policy, which follows the clock.
TEST_P(ManyDrafts, ChangeNothingHoweverLongTheyAre) {
  ASSERT_NO_FATAL_FAILURE(Load(DraftOptions{}.threshold));
  if (IsSkipped()) return;
  const bool on_host = decode_->engine().runner().on_host();  // there both seeds would be alike
  for (uint64_t seed = on_host ? 99 : 98; seed < 100; ++seed) {
    const std::vector<DraftWanted> all = Options(seed);
    const std::vector<DraftOutcome> plain = decode_->Run(all, nullptr, 0);
    for (uint64_t who = 0; who < drafters(); ++who) EXPECT_EQ(Differences(who, all, plain, 7), "") << who;
  }
}

}  // namespace dsv4::test
