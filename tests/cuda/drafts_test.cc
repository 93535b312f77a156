// Drafts change nothing on a GPU: every drafter, every option of the sampler, batches of one to ten.
#include <string>

#include "engine/drafts_fixture.h"
#include "engine/model_drafts_fixture.h"
#include "support/cuda_mirror.h"
#include "support/fixture.h"

namespace dsv4::test {
namespace {

class CudaDrafts : public testing::TestWithParam<const char*> {
 protected:
  // Of one engine for all runs: what is recorded first serves the others.
  void Load() {
    const std::string name = GetParam();
    const std::string dir = name == "nano" ? std::string(DSV4_SOURCE_DIR) + "/models/nano" : FixtureDir(name);
    if (dir.empty()) GTEST_SKIP() << "fixture " << name << " is not on this machine";
    engine_ = LoadOrFail({.model_dir = dir, .device = "cuda", .draft_threshold = 0});
    ASSERT_NE(engine_, nullptr);
    decode_ = std::make_unique<DraftedDecode>(*engine_);
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DraftedDecode> decode_;
};
INSTANTIATE_TEST_SUITE_P(All, CudaDrafts, testing::Values("flash-nvfp4", "flash-mtp", "flash-dspark", "nano"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(CudaDrafts, ChangeNothing) {
  DSV4_GPU_OR_SKIP();
  Load();
  if (IsSkipped()) return;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    std::vector<DraftWanted> all = EveryOption(seed);
    if (seed > 0) {  // where one asks for log-probabilities, the host draws
      for (DraftWanted& w : all) w.sampling.top_logprobs = -1;
    }
    const std::vector<DraftOutcome> plain = decode_->Run(all, nullptr, 0);
    for (uint64_t who = 0; who < 5; ++who) {
      const auto most = static_cast<int64_t>(1 + (seed + 3 * who) % 7);
      const size_t batch = 1 + (3 * seed + 4 * who) % 10;
      const std::vector<DraftWanted> wanted(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(batch));
      const std::vector<DraftOutcome> expected(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(batch));
      std::unique_ptr<Drafter> drafter = std::make_unique<LookupDrafter>();
      if (who < 4) drafter = std::make_unique<Oracle>(static_cast<Guess>(who), expected, engine_->info().vocab_size);
      EXPECT_EQ(decode_->Differences(wanted, expected, std::move(drafter), most), "")
          << "seed " << seed << ", drafter " << who << ", " << most << " tokens, " << batch << " sequences";
    }
  }
}

// A step of q rows is, row by row, what q steps of one row are, wherever the rings stand.
TEST_P(CudaDrafts, RowsOfOneTextAreThoseOfSingleSteps) {
  DSV4_GPU_OR_SKIP();
  Load();
  if (IsSkipped()) return;
  const int64_t v = engine_->info().vocab_size;
  for (const int64_t start : {1, 121, 125, 127, 250}) {
    const std::vector<TokenId> prompt = SomeTokens(start, 5, v), next = SomeTokens(24, 6, v);
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

// Passes of a module with their draws, recorded: as many are right as the reference says.
TEST(CudaDraftModules, AcceptWhatTheReferenceAccepts) {
  DSV4_GPU_OR_SKIP();
  for (const auto& [name, module] : {std::pair{"flash-mtp", Speculate::kMtp}, {"flash-dspark", Speculate::kDspark}}) {
    DSV4_FIXTURE_OR_SKIP(dir, name);
    for (const int64_t k : {1, 2}) ExpectAcceptedCounts("cuda", dir, module, std::to_string(k), k, 0);
  }
}

TEST(CudaDraftModules, ChangeNothing) {
  DSV4_GPU_OR_SKIP();
  for (const char* name : {"flash-mtp", "flash-dspark"}) {
    DSV4_FIXTURE_OR_SKIP(dir, name);
    const auto engine =
        LoadOrFail({.model_dir = dir, .device = "cuda", .speculate = Speculate::kAuto, .draft_threshold = 0});
    ASSERT_NE(engine, nullptr);
    DraftedDecode decode(*engine);
    std::vector<DraftWanted> all = EveryOption(7);
    for (DraftWanted& w : all) w.sampling.top_logprobs = -1;
    Drafting& drafting = decode.engine().drafting();
    std::unique_ptr<Drafter> module = std::move(drafting.drafter);
    const std::vector<DraftOutcome> plain = decode.Run(all, nullptr, 0);
    for (const int64_t most : {1, 2, 5, 7}) {
      EXPECT_EQ(decode.Differences(all, plain, std::move(module), most), "") << name << ", " << most;
      module = std::move(drafting.drafter);
    }
    EXPECT_GT(engine->draft_counts().drafted, 0) << name;
  }
}

}  // namespace
}  // namespace dsv4::test
