// Drafts change nothing, over many seeds, lengths of drafts and sizes of batches.
#include "engine/drafts/many_drafts.h"
#include "engine/drafts/own_module.h"

namespace dsv4::test {
namespace {

INSTANTIATE_TEST_SUITE_P(All, ManyDrafts,
                         testing::Values(ModelAndSeeds{{"flash-nvfp4", "cpu"}, 2},
                                         ModelAndSeeds{{"pro-official-cut", "cpu"}, 1},
                                         ModelAndSeeds{{"nano", "cpu"}, 1}, ModelAndSeeds{{"flash-nvfp4", "cpu*2"}, 1},
                                         ModelAndSeeds{{"flash-mtp", "cpu", false, Speculate::kMtp}, 1},
                                         ModelAndSeeds{{"flash-dspark", "cpu", false, Speculate::kDspark}, 1}),
                         NameOfSeeds);
INSTANTIATE_TEST_SUITE_P(Campaign, ManyDrafts,
                         testing::Values(ModelAndSeeds{{"flash-nvfp4", "cpu"}, 20},
                                         ModelAndSeeds{{"pro-official-cut", "cpu"}, 4},
                                         ModelAndSeeds{{"mini-bf16", "cpu"}, 4},
                                         ModelAndSeeds{{"flash-all-nvfp4", "cpu"}, 4},
                                         ModelAndSeeds{{"nano", "cpu"}, 3}, ModelAndSeeds{{"flash-nvfp4", "cpu*2"}, 3},
                                         ModelAndSeeds{{"flash-mtp", "cpu", false, Speculate::kMtp}, 20},
                                         ModelAndSeeds{{"flash-dspark", "cpu", false, Speculate::kDspark}, 20}),
                         NameOfSeeds);

class ManyRounds : public ::testing::TestWithParam<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(All, ManyRounds, testing::Values(6), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Campaign, ManyRounds, testing::Values(40), testing::PrintToStringParamName());

// In rounds without the host: texts that begin and end at every position of the rings.
TEST_P(ManyRounds, ChangeNothing) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-mtp");
  const auto engine = LoadOrFail(
      {.model_dir = dir, .num_threads = 1, .drafts = {.speculate = Speculate::kMtp, .threshold = 0}});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  std::unique_ptr<Drafter> module = std::move(decode.engine().drafting().drafter);
  Random random(9);
  for (uint64_t seed = 0; seed < GetParam(); ++seed) {
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

// The bundled model's modules.
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

}  // namespace
}  // namespace dsv4::test
