// Drafts change nothing on a GPU: the cases of every device, and cases of draft modules on a GPU.
#include <string>
#include <string_view>
#include <vector>

#include "engine/drafts/draft_cases.h"
#include "engine/drafts/many_drafts.h"
#include "engine/drafts/model_drafts_fixture.h"
#include "engine/engine_impl.h"
#include "support/cuda_mirror.h"
#include "support/fixture.h"

namespace dsv4::test {
namespace {

bool HasGpu() { return Gpu() != nullptr; }
bool HasTwoGpus() { return HasGpus(2); }

INSTANTIATE_TEST_SUITE_P(Cuda, DraftCases,
                         testing::Values(DraftedModel{"flash-nvfp4", "cuda", true, Speculate::kOff, HasGpu},
                                         DraftedModel{"flash-nvfp4", "cuda:0*2", true, Speculate::kOff, HasGpu},
                                         DraftedModel{"flash-mtp", "cuda", true, Speculate::kMtp, HasGpu},
                                         DraftedModel{"flash-dspark", "cuda", true, Speculate::kDspark, HasGpu},
                                         DraftedModel{"flash-mtp", "cuda:0*2", true, Speculate::kMtp, HasGpu},
                                         DraftedModel{"flash-dspark", "cuda:0*2", true, Speculate::kDspark, HasGpu},
                                         DraftedModel{"flash-mtp", "cuda:0,1", true, Speculate::kMtp, HasTwoGpus},
                                         DraftedModel{"flash-dspark", "cuda:0,1", true, Speculate::kDspark, HasTwoGpus},
                                         DraftedModel{"nano", "cuda", true, Speculate::kMtp, HasGpu},
                                         DraftedModel{"nano", "cuda", true, Speculate::kDspark, HasGpu}),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(
    Cuda, ManyDrafts,
    testing::Values(ModelAndSeeds{{"flash-nvfp4", "cuda", false, Speculate::kOff, HasGpu}, 20},
                    ModelAndSeeds{{"flash-mtp", "cuda", false, Speculate::kMtp, HasGpu}, 20},
                    ModelAndSeeds{{"flash-dspark", "cuda", false, Speculate::kDspark, HasGpu}, 20},
                    ModelAndSeeds{{"nano", "cuda", false, Speculate::kMtp, HasGpu}, 4},
                    ModelAndSeeds{{"flash-mtp", "cuda:0,1", false, Speculate::kMtp, HasTwoGpus}, 4},
                    ModelAndSeeds{{"flash-dspark", "cuda:0,1", false, Speculate::kDspark, HasTwoGpus}, 4}),
    NameOfSeeds);

// With log-probabilities, for which the host draws.
TEST(CudaDrafts, ChangeNothingThatTheHostDraws) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const auto engine = LoadOrFail({.model_dir = dir, .device = "cuda", .drafts = {.threshold = 0}});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  const std::vector<DraftWanted> wanted = EveryOption(5);
  const std::vector<DraftOutcome> plain = decode.Run(wanted, nullptr, 0);
  for (const Guess guess : kGuesses) {
    auto oracle = std::make_unique<Oracle>(guess, plain, engine->info().vocab_size);
    EXPECT_EQ(decode.Differences(wanted, plain, std::move(oracle), 4), "") << static_cast<int>(guess);
  }
}

class CudaDraftRows : public DraftsOfAModel {};
INSTANTIATE_TEST_SUITE_P(All, CudaDraftRows,
                         testing::Values(DraftedModel{"flash-nvfp4", "cuda", true, Speculate::kOff, HasGpu},
                                         DraftedModel{"flash-mtp", "cuda", true, Speculate::kMtp, HasGpu},
                                         DraftedModel{"flash-dspark", "cuda", true, Speculate::kDspark, HasGpu},
                                         DraftedModel{"nano", "cuda", true, Speculate::kOff, HasGpu}),
                         NameOf);

// A step of q rows equals, row by row, q steps of one row, for every position in the rings.
TEST_P(CudaDraftRows, RowsOfOneTextAreThoseOfSingleSteps) {
  for (const int64_t start : {1, 121, 125, 127, 250}) {
    const std::vector<TokenId> prompt = SomeTokens(start, 5, vocab()), next = SomeTokens(24, 6, vocab());
    const auto run = [&](size_t rows) {
      auto session = std::move(engine_->NewSession()).value();
      EXPECT_TRUE(session->Append(prompt, LogitRows::kNone, nullptr).ok());
      std::vector<float> all, some;
      for (size_t at = 0; at < next.size(); at += rows) {
        const auto part = std::span(next).subspan(at, std::min(rows, next.size() - at));
        const StepItem item{.session = session.get(), .tokens = part, .rows = LogitRows::kAll, .logits = &some};
        EXPECT_TRUE(engine_->Step({&item, 1}).ok());
        all.insert(all.end(), some.begin(), some.end());
      }
      return all;
    };
    const std::vector<float> single = run(1);
    for (size_t rows = 2; rows <= 8; ++rows) EXPECT_EQ(run(rows), single) << rows << " rows from " << start;
  }
}

class CudaDraftedLoop : public DraftsOfAModel {};
INSTANTIATE_TEST_SUITE_P(Modules, CudaDraftedLoop,
                         testing::Values(DraftedModel{"flash-mtp", "cuda", true, Speculate::kMtp, HasGpu},
                                         DraftedModel{"flash-dspark", "cuda", true, Speculate::kDspark, HasGpu},
                                         DraftedModel{"flash-mtp", "cuda:0,1", true, Speculate::kMtp, HasTwoGpus},
                                         DraftedModel{"flash-dspark", "cuda:0,1", true, Speculate::kDspark, HasTwoGpus},
                                         DraftedModel{"flash-dspark", "cuda:0*2", true, Speculate::kDspark, HasGpu}),
                         NameOf);

// Rounds of a module's drafts run without the host, until too few tokens are left for two rounds.
TEST_P(CudaDraftedLoop, AsksTheHostInTheEndOnly) {
  const std::vector<DraftWanted> wanted = {
      {.prompt = 30, .sampling = {.temperature = 0}, .max_tokens = 40},
      {.prompt = 140, .sampling = {.temperature = 0.5f, .repeat_penalty = 1.2f, .seed = 3}, .max_tokens = 40}};
  const std::vector<DraftOutcome> plain = decode_->Run(wanted, nullptr, 0);
  const Counted& counted = CountModule();
  for (int64_t most = 1; most <= 3; ++most) {
    const int64_t proposals = counted.proposals, verifications = counted.verifications;
    EXPECT_EQ(DifferencesWithModule(wanted, plain, most), "") << most;
    EXPECT_GT(counted.verifications - verifications, 2 * (counted.proposals - proposals)) << most;
  }
}

// The steps of rounds are recorded when the engine is loaded: a first text does not wait for a recording.
TEST_P(CudaDraftedLoop, AFirstTextRecordsNothing) {
  const DraftedModel& model = GetParam();
  DSV4_FIXTURE_OR_SKIP(dir, model.fixture);
  for (int64_t most = 1; most <= 3; ++most) {
    const auto engine = LoadOrFail(
        {.model_dir = dir, .device = model.device, .drafts = {.speculate = model.module, .tokens = most}});
    ASSERT_NE(engine, nullptr);
    const auto count = [&] {
      std::vector<int64_t> counts;
      for (const Recordings* each : dynamic_cast<EngineImpl&>(*engine).ranks().recordings())
        counts.push_back(each->count());
      return counts;
    };
    const std::vector<int64_t> before = count();
    if (std::string_view(model.device) != "cuda:0*2") {  // ranks of one GPU use events
      EXPECT_GT(before.front(), 0);
    }
    Generate(*engine, SomeTokens(30, 5, engine->info().vocab_size), 60, {.temperature = 0});
    EXPECT_GT(engine->draft_counts().steps, 0) << most;
    EXPECT_EQ(count(), before) << most;
  }
}

// Recorded passes of a module with their draws: the number of accepted tokens equals the reference's.
TEST(CudaDraftModules, AcceptWhatTheReferenceAccepts) {
  DSV4_GPU_OR_SKIP();
  for (const auto& [name, module] : {std::pair{"flash-mtp", Speculate::kMtp}, {"flash-dspark", Speculate::kDspark}}) {
    DSV4_FIXTURE_OR_SKIP(dir, name);
    for (const int64_t k : {1, 2}) ExpectAcceptedCounts("cuda", dir, module, std::to_string(k), k, 0);
  }
}

}  // namespace
}  // namespace dsv4::test
