// Drafts change nothing, over many seeds, lengths of drafts and sizes of batches.
#include "engine/drafts/drafts_fixture.h"
#include "engine/drafts/own_module.h"

namespace dsv4::test {
namespace {

struct ModelAndSeeds {
  const char* fixture;  // or nano
  const char* device;
  uint64_t seeds;
};

class ManyDrafts : public ::testing::TestWithParam<ModelAndSeeds> {};

std::string NameOfCase(const testing::TestParamInfo<ModelAndSeeds>& instance) {
  std::string name = std::string(instance.param.fixture) + "_" + instance.param.device;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '*'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, ManyDrafts,
                         testing::Values(ModelAndSeeds{"flash-nvfp4", "cpu", 3},
                                         ModelAndSeeds{"pro-official-cut", "cpu", 1}, ModelAndSeeds{"nano", "cpu", 1},
                                         ModelAndSeeds{"flash-nvfp4", "cpu*2", 1}),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Campaign, ManyDrafts,
                         testing::Values(ModelAndSeeds{"flash-nvfp4", "cpu", 20},
                                         ModelAndSeeds{"pro-official-cut", "cpu", 4},
                                         ModelAndSeeds{"mini-bf16", "cpu", 4},
                                         ModelAndSeeds{"flash-all-nvfp4", "cpu", 4}, ModelAndSeeds{"nano", "cpu", 3},
                                         ModelAndSeeds{"flash-nvfp4", "cpu*2", 3}),
                         NameOfCase);

// A sequence in a batch is what it is alone, so the first of a batch are also the runs of a smaller one.
TEST_P(ManyDrafts, ChangeNothing) {
  const ModelAndSeeds& model = GetParam();
  const std::string dir = std::string(model.fixture) == "nano" ? std::string(DSV4_SOURCE_DIR) + "/models/nano"
                                                               : FixtureDir(model.fixture);
  if (dir.empty()) GTEST_SKIP() << "fixture " << model.fixture << " is not on this machine";
  const auto engine = LoadOrFail(
      {.model_dir = dir, .device = model.device, .num_threads = 1, .drafts = {.threshold = 0}});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  for (uint64_t seed = 0; seed < model.seeds; ++seed) {
    const std::vector<DraftWanted> all = EveryOption(seed);
    const std::vector<DraftOutcome> plain = decode.Run(all, nullptr, 0);
    for (uint64_t who = 0; who < 5; ++who) {
      const auto most = static_cast<int64_t>(1 + (seed + 3 * who) % 7);
      const size_t batch = 1 + (3 * seed + 4 * who) % 10;
      std::vector<DraftWanted> wanted;
      std::vector<DraftOutcome> expected;
      for (size_t i = 0; i < batch; ++i) {
        wanted.push_back(all[i]);
        expected.push_back(plain[i]);
      }
      std::unique_ptr<Drafter> drafter = std::make_unique<LookupDrafter>();
      if (who < 4) drafter = std::make_unique<Oracle>(static_cast<Guess>(who), expected, engine->info().vocab_size);
      EXPECT_EQ(decode.Differences(wanted, expected, std::move(drafter), most), "")
          << "seed " << seed << ", drafter " << who << ", " << most << " tokens, " << batch << " sequences";
    }
  }
}

// In rounds without the host: texts that begin at every place of the rings and end at any.
TEST(ManyRounds, ChangeNothing) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  const auto engine = LoadOrFail(
      {.model_dir = dir, .num_threads = 1, .drafts = {.speculate = Speculate::kMtp, .threshold = 0}});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  std::unique_ptr<Drafter> module = std::move(decode.engine().drafting().drafter);
  Random random(9);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::vector<DraftWanted> wanted = EveryOption(seed);
    std::erase_if(wanted, [](const DraftWanted& w) { return w.masked || !w.speculate; });
    wanted.resize(1 + static_cast<size_t>(random.Index(std::ssize(wanted))));
    for (DraftWanted& w : wanted) {
      w.sampling.top_logprobs = -1;
      w.prompt = random.Chance(0.5) ? 1 + random.Index(140) : 120 + random.Index(16) + 128 * random.Index(2);
      w.max_tokens = 8 + random.Index(40);
      w.ends_after = random.Chance(0.3) ? 1 + random.Index(30) : w.ends_after;
    }
    decode.UseDecode({});
    const std::vector<DraftOutcome> plain = decode.Run(wanted, nullptr, 0);
    decode.UseDecode(AsOnADevice(*engine));
    for (const Guess guess : {Guess::kRight, Guess::kHalf, Guess::kHalf, Guess::kRandom}) {
      const int64_t most = 1 + random.Index(3);
      EXPECT_EQ(
          decode.Differences(wanted, plain, std::make_unique<Oracle>(guess, plain, engine->info().vocab_size), most),
          "")
          << "seed " << seed << ", drafter " << static_cast<int>(guess) << ", " << most << " tokens";
    }
    EXPECT_EQ(decode.Differences(wanted, plain, std::move(module), 1 + random.Index(3)), "") << "seed " << seed;
    module = std::move(decode.engine().drafting().drafter);
  }
}

// The bundled model's own modules.
struct ModuleOnDevice {
  Speculate module;
  const char* device;
  uint64_t seeds;
};

class ManyOwnDrafts : public ::testing::TestWithParam<ModuleOnDevice> {};

std::string NameOfModule(const testing::TestParamInfo<ModuleOnDevice>& instance) {
  return std::string(instance.param.module == Speculate::kMtp ? "Mtp" : "Dspark") +
         (std::string(instance.param.device) == "cpu" ? "" : "OfTwoRanks");
}

INSTANTIATE_TEST_SUITE_P(Nano, ManyOwnDrafts,
                         testing::Values(ModuleOnDevice{Speculate::kMtp, "cpu", 3},
                                         ModuleOnDevice{Speculate::kDspark, "cpu", 3},
                                         ModuleOnDevice{Speculate::kMtp, "cpu*2", 1},
                                         ModuleOnDevice{Speculate::kDspark, "cpu*2", 1}),
                         NameOfModule);
INSTANTIATE_TEST_SUITE_P(Campaign, ManyOwnDrafts,
                         testing::Values(ModuleOnDevice{Speculate::kMtp, "cpu", 20},
                                         ModuleOnDevice{Speculate::kDspark, "cpu", 20},
                                         ModuleOnDevice{Speculate::kMtp, "cpu*2", 2},
                                         ModuleOnDevice{Speculate::kDspark, "cpu*2", 2}),
                         NameOfModule);

TEST_P(ManyOwnDrafts, ChangeNothing) {
  OwnModule own(GetParam().module, GetParam().device, 1);
  ASSERT_TRUE(own);
  for (uint64_t seed = 0; seed < GetParam().seeds; ++seed) {
    std::vector<DraftWanted> wanted = EveryOption(seed);
    wanted.resize(1 + (3 * seed + 9) % 10);
    const auto most = static_cast<int64_t>(1 + seed % 7);
    const std::vector<DraftOutcome> plain = own.Run(wanted, 0), drafted = own.Run(wanted, most);
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(drafted[i] == plain[i]) << "seed " << seed << ", " << most << " tokens, sequence " << i;
  }
  EXPECT_GT(own.counts().accepted, 0);
  EXPECT_LT(own.counts().accepted, own.counts().drafted);
}

// With the policy, which follows the clock.
TEST_P(ManyDrafts, ChangeNothingHoweverLongTheyAre) {
  const ModelAndSeeds& model = GetParam();
  const std::string dir = std::string(model.fixture) == "nano" ? std::string(DSV4_SOURCE_DIR) + "/models/nano"
                                                               : FixtureDir(model.fixture);
  if (dir.empty()) GTEST_SKIP() << "fixture " << model.fixture << " is not on this machine";
  const auto engine = LoadOrFail({.model_dir = dir, .device = model.device, .num_threads = 1});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  const std::vector<DraftWanted> all = EveryOption(99);
  const std::vector<DraftOutcome> plain = decode.Run(all, nullptr, 0);
  for (uint64_t who = 0; who < 5; ++who) {
    std::unique_ptr<Drafter> drafter = std::make_unique<LookupDrafter>();
    if (who < 4) drafter = std::make_unique<Oracle>(static_cast<Guess>(who), plain, engine->info().vocab_size);
    EXPECT_EQ(decode.Differences(all, plain, std::move(drafter), 7), "") << who;
  }
}

}  // namespace
}  // namespace dsv4::test
