// Drafts change nothing, over many seeds, lengths of drafts and batch sizes. Every device has the same cases; the test
// program names the models (INSTANTIATE_TEST_SUITE_P).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/drafts/drafts_fixture.h"

namespace dsv4::test {

struct ModelAndSeeds {
  DraftedModel model;
  uint64_t seeds;
};

inline std::string NameOfSeeds(const testing::TestParamInfo<ModelAndSeeds>& instance) {
  return NameOfModel(instance.param.model);
}

class ManyDrafts : public DraftsOfAnEngine, public ::testing::WithParamInterface<ModelAndSeeds> {
 protected:
  // The drafters: oracles that guess as Guess defines, lookup, the model's module.
  static constexpr uint64_t kLookup = 4, kModule = 5;

  uint64_t drafters() const { return module_ == nullptr ? kModule : kModule + 1; }

  // A GPU draws tokens without log-probabilities: every other batch requests none.
  std::vector<DraftWanted> Options(uint64_t seed) const {
    std::vector<DraftWanted> all = EveryOption(seed);
    if (decode_->engine().runner().on_host() || seed % 2 == 0) return all;
    for (DraftWanted& w : all) w.sampling.top_logprobs = -1;
    return all;
  }

  std::string Differences(uint64_t who, const std::vector<DraftWanted>& wanted, const std::vector<DraftOutcome>& plain,
                          int64_t most) {
    if (who == kModule) return DifferencesWithModule(wanted, plain, most);
    if (who == kLookup) return decode_->Differences(wanted, plain, std::make_unique<LookupDrafter>(), most);
    return decode_->Differences(wanted, plain, MakeOracle(static_cast<Guess>(who), plain), most);
  }
};

// A sequence in a batch equals the sequence alone, so the first sequences of a batch are also the runs of a smaller
// one.
TEST_P(ManyDrafts, ChangeNothing) {
  ASSERT_NO_FATAL_FAILURE(Load(GetParam().model, /*threshold=*/0));
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
  ASSERT_NO_FATAL_FAILURE(Load(GetParam().model, DraftOptions{}.threshold));
  if (IsSkipped()) return;
  const bool on_host = decode_->engine().runner().on_host();  // there both seeds would be equal
  for (uint64_t seed = on_host ? 99 : 98; seed < 100; ++seed) {
    const std::vector<DraftWanted> all = Options(seed);
    const std::vector<DraftOutcome> plain = decode_->Run(all, nullptr, 0);
    for (uint64_t who = 0; who < drafters(); ++who) EXPECT_EQ(Differences(who, all, plain, 7), "") << who;
  }
}

}  // namespace dsv4::test
