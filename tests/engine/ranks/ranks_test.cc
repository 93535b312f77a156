// Engines with several ranks on one CPU: the same text, sessions, snapshots and errors as with one rank.
#include "engine/ranks/ranks.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <new>
#include <thread>

#include <gmock/gmock.h>

#include "dsv4/inspect.h"
#include "dsv4/sampling.h"
#include "dsv4/snapshot.h"
#include "engine/sessions/session.h"
#include "io/test_files.h"
#include "ops/sum_ranks/sum_ranks.h"
#include "support/agreement.h"
#include "support/fixture_agreement.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

using ::testing::HasSubstr;

EngineOptions NanoOn(const std::string& device) {
  return {.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano", .device = device, .num_threads = 2};
}

struct Case {
  const char* fixture;
  const char* device;
};
class EngineRanks : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, EngineRanks,
                         testing::Values(Case{"mini-bf16", "cpu*2"}, Case{"flash-8-groups", "cpu*4"},
                                         Case{"flash-8-groups", "cpu*8"}),
                         [](const auto& instance) { return "case_" + std::to_string(instance.index); });

TEST_P(EngineRanks, LogitsMatchTheReference) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam().fixture);
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  EngineOptions options = ExactOptions(dir);
  options.device = GetParam().device;
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const std::vector<float> all = AllLogits(*engine, ids.i32);
  EXPECT_LE(LargestDifference(all, reference.f32), 2e-3f);  // docs/dev/numerics.md
  // Single tokens are decode rows, divided by heads; prompts are divided by tokens.
  EXPECT_LE(LargestDifference(AllLogits(*engine, ids.i32, 130), reference.f32), 2e-3f);
  options.prefill_chunk = 37;  // some ranks have no row of the last chunk
  const auto in_chunks = LoadOrFail(options);
  ASSERT_NE(in_chunks, nullptr);
  EXPECT_EQ(AllLogits(*in_chunks, ids.i32), all);
  EXPECT_TRUE(engine->health().ok() && in_chunks->health().ok());
}

// FP8 rows and FP4 index keys: every rank rounds the same numbers, so the results are equal.
TEST_P(EngineRanks, AsTrainedRoundingAgreesWithTheSimulatedReference) {
  DSV4_FIXTURE_OR_SKIP(dir, GetParam().fixture);
  EngineOptions options;
  options.model_dir = dir, options.device = GetParam().device, options.ranks.check = true;
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  ExpectAgreesAsTrained(*engine, dir, /*decode_from=*/130);
  EXPECT_TRUE(engine->health().ok()) << engine->health().message();
}

TEST(EngineRanks, BitsDoNotDependOnBatchesOrChunks) {
  const auto engine = LoadOrFail(NanoOn("cpu*2"));
  EngineOptions chunked = NanoOn("cpu*2");
  chunked.prefill_chunk = 37;
  const auto in_chunks = LoadOrFail(chunked);
  ASSERT_TRUE(engine != nullptr && in_chunks != nullptr);
  std::vector<std::vector<TokenId>> prompts = {SomeTokens(150, 1, 4096), SomeTokens(3, 2, 4096),
                                               SomeTokens(61, 3, 4096)};
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<float>> together(prompts.size());
  std::vector<StepItem> items;
  for (size_t i = 0; i < prompts.size(); ++i) {
    sessions.push_back(std::move(engine->NewSession()).value());
    items.push_back({.session = sessions[i].get(),
                     .tokens = prompts[i],
                     .rows = LogitRows::kAll,
                     .logits = &together[i],
                     .prompt_tokens = static_cast<int64_t>(prompts[i].size())});
  }
  ASSERT_TRUE(engine->Step(items).ok());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(AllLogits(*engine, prompts[i]), together[i]) << i;
    EXPECT_EQ(AllLogits(*in_chunks, prompts[i]), together[i]) << i;
  }
}

// Two ranks write the same text as one: nano's greedy text has wide margins.
TEST(EngineRanks, GreedyTextIsOneRanks) {
  std::vector<std::vector<TokenId>> texts;
  for (const char* device : {"cpu", "cpu*2"}) {
    const auto engine = LoadOrFail(NanoOn(device));
    ASSERT_NE(engine, nullptr);
    const auto session = std::move(engine->NewSession()).value();
    const auto sampler = std::move(Sampler::Create({.temperature = 0}, engine->info().vocab_size)).value();
    ASSERT_TRUE(session->Append(SomeTokens(9, 5, 4096), LogitRows::kNone, nullptr).ok());
    const DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = 17, .max_tokens = 12};
    texts.emplace_back();
    ASSERT_TRUE(
        engine->Decode({&item, 1}, [&](size_t, const SampledToken& t) { return texts.back().push_back(t.id), true; })
            .ok());
  }
  EXPECT_EQ(texts[0].size(), 12u);
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(EngineRanks, SnapshotsAndTheirFilesGoOnWithTheSameBits) {
  const auto engine = LoadOrFail(NanoOn("cpu*2"));
  ASSERT_NE(engine, nullptr);
  const Continuation c = ExpectSnapshotGoesOn(*engine);

  const TempDir dir;
  const std::string path = dir / "cut";
  ASSERT_TRUE(c.snapshot->Save(path).ok());
  const auto other = LoadOrFail(NanoOn("cpu*2"));
  const auto loaded = other->LoadSnapshot(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  std::vector<float> got;
  ASSERT_TRUE(std::move(other->NewSession(**loaded)).value()->Append(c.more, LogitRows::kAll, &got).ok());
  EXPECT_EQ(got, c.logits);

  // The bits of sums depend on the number of ranks, so an engine with another number refuses the file.
  const auto one = LoadOrFail(NanoOn("cpu"));
  EXPECT_EQ(one->LoadSnapshot(path).status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(one->LoadSnapshot(path).status().message(), HasSubstr("ranks 2"));
}

TEST(EngineRanks, RowsThatDifferAreFoundWhereThatIsAsked) {
  EngineOptions options = NanoOn("cpu*2");
  options.ranks.check = true;
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const auto session = std::move(engine->NewSession()).value();
  ASSERT_TRUE(session->Append(SomeTokens(20, 1, 4096), LogitRows::kNone, nullptr).ok());
  static_cast<SessionImpl&>(*session).caches().of(1).fixed()[0] ^= 1;
  const Status status = session->Append(SomeTokens(1, 2, 4096), LogitRows::kNone, nullptr);
  EXPECT_EQ(status.message(), "rank 1: its KV rows differ from rank 0's, first at byte 0; please report this");
  EXPECT_EQ(engine->health().message(), status.message());
}

// Compares every page that a step has written, not only the last one.
TEST(EngineRanks, PagesThatDifferAreFound) {
  EngineOptions options = NanoOn("cpu*2");
  options.ranks.check = true;
  options.prefill_chunk = 600;
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const auto session = std::move(engine->NewSession()).value();
  ASSERT_TRUE(session->Append(SomeTokens(100, 1, 4096), LogitRows::kNone, nullptr).ok());
  const RankCaches& caches = static_cast<SessionImpl&>(*session).caches();
  caches.of(1).pages()[0][0] ^= 1;  // a row that is not read again in this test
  const Status status = session->Append(SomeTokens(600, 2, 4096), LogitRows::kNone, nullptr);
  ASSERT_GT(caches.of(0).pages().size(), 2u);
  EXPECT_THAT(status.message(), HasSubstr("first at byte 0 of page 0"));
}

TEST(EngineRanks, MemoryIsThatOfAllRanks) {
  const auto one = LoadOrFail(NanoOn("cpu")), two = LoadOrFail(NanoOn("cpu*2"));
  ASSERT_TRUE(one != nullptr && two != nullptr);
  EXPECT_EQ(two->info().kv_fixed_bytes, 2 * one->info().kv_fixed_bytes);
  EXPECT_EQ(two->info().kv_bytes_per_token, 2 * one->info().kv_bytes_per_token);
  {
    const auto session = std::move(two->NewSession()).value();
    ASSERT_TRUE(session->Append(SomeTokens(300, 1, 4096), LogitRows::kNone, nullptr).ok());
    EXPECT_EQ(session->memory_bytes(), two->kv_bytes());
    EXPECT_GT(two->kv_bytes(), two->info().kv_fixed_bytes);
  }
  EXPECT_EQ(two->kv_bytes(), 0);
  const auto plan = [](const char* device) { return std::move(Inspect(NanoOn(device))).value().plan; };
  EXPECT_EQ(plan("cpu").ranks, 1);
  EXPECT_EQ(plan("cpu*2").ranks, 2);
  EXPECT_EQ(plan("cpu*2").kv_fixed_bytes, 2 * plan("cpu").kv_fixed_bytes);
  EXPECT_EQ(plan("cpu*2").weight_bytes, plan("cpu").weight_bytes);  // mapped once
}

std::string Refusal(const std::string& device) {
  const Status load = Engine::Load(NanoOn(device)).status(), inspect = Inspect(NanoOn(device)).status();
  EXPECT_EQ(load.message(), inspect.message());
  return load.message();
}

TEST(EngineRanks, RefusesWhatCannotBeDivided) {
  EXPECT_EQ(Refusal("cpu*4"), "o_groups 2: 4 heads in 2 groups cannot be divided among 4 ranks; use 1 or 2");
  EXPECT_EQ(Refusal("cpu*3"), "device 'cpu*3': a model is divided among 1, 2, 4 or 8 ranks");
  EXPECT_EQ(Refusal("cuda:0-2"), "device 'cuda:0-2': 3 GPUs; a model is divided among 1, 2, 4 or 8 ranks");
}

// ---- Faults, with models that only run collectives. ----

class NoMemory : public StepMemory {
 public:
  int64_t max_tokens() const override { return 1024; }
  int64_t max_rows() const override { return 1024; }
  Tensor Logits(int64_t n) const override { return {nullptr, DType::kF32, {n, 1}}; }
};

class ExchangingModel : public LoadedModel {
 public:
  // `most_tokens`: limit for the tokens of a step.
  explicit ExchangingModel(std::function<void(int64_t site)> before, int64_t most_tokens = 1 << 20)
      : before_(std::move(before)), most_tokens_(most_tokens) {}
  const KvLayout& kv_layout() const override { return layout_; }
  std::unique_ptr<StepMemory> MakeStepMemory(int64_t tokens, int64_t, Device&) const override {
    if (tokens > most_tokens_) throw std::bad_alloc();
    return std::make_unique<NoMemory>();
  }
  void Plan(const ExecContext&) override {}
  void Forward(const ExecContext& ctx, const StepView&, StepMemory&, const Tensor&, const TakeLogits&) const override {
    float y[64] = {};
    for (int64_t site = 0; site < 20; ++site) {
      before_(site);
      SumRanks(ctx, {.y = {y, DType::kF32, {1, 64}}, .site = site});
    }
  }
  std::string ExchangeName(int64_t site) const override { return "place " + std::to_string(site); }
  std::string Describe() const override { return ""; }
  void VisitBytes(const std::function<void(const void*, int64_t, float)>&) const override {}
  bool CountExperts(Device&) override { return false; }
  bool UseHostExperts(Device&, ExpertComputing) override { return true; }
  std::vector<ExpertSwap> BetterPlaces(std::span<const double>, int64_t) const override { return {}; }
  int64_t BeginSwaps(std::span<const ExpertSwap>) override { return 0; }
  bool ContinueSwaps(Device&) override { return true; }
  void AskForCounts(Device&) override {}
  std::vector<uint64_t> CountsAskedFor(Device&) override { return {}; }
  Result<ExpertUse> UseOfExperts(Device&) const override { return ExpertUse{}; }
  double StepBytes(int64_t, int64_t) const override { return 0; }
  std::vector<LinearShape> LinearShapes() const override { return {}; }

 private:
  const std::function<void(int64_t)> before_;
  const int64_t most_tokens_;
  const KvLayout layout_;
};

// Four ranks. The last one calls `before` before every collective, and has memory for `most_tokens` tokens.
class FaultyRanks {
 public:
  FaultyRanks(std::function<void(int64_t)> before, double timeout_s, int64_t most_tokens = 1 << 20) {
    std::vector<Ranks::Rank> ranks;
    for (int r = 0; r < 4; ++r) {
      auto pool = std::make_unique<ThreadPool>(1);
      auto model = r == 3 ? std::make_unique<ExchangingModel>(before, most_tokens)
                          : std::make_unique<ExchangingModel>([](int64_t) {});
      devices_.push_back(std::move(Device::Open("cpu")).value());
      auto runner = std::make_unique<Runner>(*devices_.back(), *pool, std::move(model), EngineOptions{}, 1024, 0);
      ranks.push_back({std::move(pool), std::move(runner)});
    }
    ranks_ = std::make_unique<Ranks>(std::move(ranks),
                                     std::make_unique<Exchange>(4, ExchangeOptions{.timeout_s = timeout_s}));
    ranks_->Reserve(1, 1);
  }
  Ranks& operator*() { return *ranks_; }
  Ranks* operator->() { return ranks_.get(); }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Ranks> ranks_;
};

TEST(RanksFaults, ALateRankIsAwaited) {
  FaultyRanks ranks(
      [](int64_t site) {
        if (site == 5) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      },
      20);
  EXPECT_TRUE(ranks->Forward({}, Regime::kDecode, {}, {}).ok());
  EXPECT_TRUE(ranks->status().ok());
}

TEST(RanksFaults, MemoryThatRunsOutOnOneRankEndsTheStepOnAll) {
  FaultyRanks ranks(
      [](int64_t site) {
        if (site == 5) throw std::bad_alloc();
      },
      0);
  const Status status = ranks->Forward({}, Regime::kDecode, {}, {});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("rank 3 (after place 4): no memory for this step"));
  EXPECT_EQ(ranks->status().message(), status.message());
  EXPECT_EQ(ranks->Forward({}, Regime::kDecode, {}, {}).message(), status.message());  // and does not hang
}

// Nothing fails before a step has begun: a smaller step that fits runs.
TEST(RanksFaults, BuffersThatDoNotFitOneRankLeaveSmallerStepsPossible) {
  FaultyRanks ranks([](int64_t) {}, 0, /*most_tokens=*/2048);
  EXPECT_THROW(ranks->Reserve(4096, 1), std::bad_alloc);
  EXPECT_TRUE(ranks->status().ok());
  ranks->Reserve(1, 1);
  EXPECT_TRUE(ranks->Forward({}, Regime::kDecode, {}, {}).ok());
}

TEST(RanksFaults, ADeviceThatFailsIsNamedAndNobodyWaitsForIt) {
  FaultyRanks ranks([](int64_t) {}, 0);  // no limit for the wait
  ranks->runner(2).FailAfter({.passes = 2});
  EXPECT_TRUE(ranks->Forward({}, Regime::kDecode, {}, {}).ok());
  const Status status = ranks->Forward({}, Regime::kDecode, {}, {});
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(),
              HasSubstr("rank 2 (after place 19): the CPU failed (simulated: DSV4_FAIL_DEVICE_AFTER)"));
  EXPECT_EQ(ranks->status().message(), status.message());
  EXPECT_EQ(ranks->Forward({}, Regime::kDecode, {}, {}).message(), status.message());
}

// Results of `wait` for each of four ranks; rank `other` has other numbers than rank 0.
Result<std::span<const int32_t>> ResultsOf(Ranks& ranks, int other, const Status& of_rank_1 = {}) {
  static constexpr int32_t kSame[] = {5, 7, 9}, kOther[] = {5, 8, 9};
  return ranks.WaitForSame([&](int rank) -> Result<std::span<const int32_t>> {
    if (rank == 1 && !of_rank_1.ok()) return of_rank_1;
    return std::span<const int32_t>(rank == other ? kOther : kSame);
  });
}

TEST(RanksFaults, ResultsOfAStepMustBeTheSameOnAllRanks) {
  FaultyRanks ranks([](int64_t) {}, 0);
  const auto same = ResultsOf(*ranks, /*other=*/-1);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_THAT(*same, testing::ElementsAre(5, 7, 9));
  const Status status = ResultsOf(*ranks, /*other=*/2).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "rank 2: its step returned 8 and rank 0's returned 7; please report this");
  EXPECT_EQ(ranks->Forward({}, Regime::kDecode, {}, {}).message(), status.message());
}

TEST(RanksFaults, ARankWhoseStepFailsIsNamed) {
  FaultyRanks ranks([](int64_t) {}, 0);
  const Status status = ResultsOf(*ranks, /*other=*/2, Internal("its device is gone")).status();
  EXPECT_EQ(status.message(), "rank 1: its device is gone");
  EXPECT_EQ(ranks->status().message(), status.message());
}

TEST(RanksFaults, ARankThatDoesNotComeIsNamed) {
  std::atomic<const Ranks*> all{nullptr};
  std::atomic<bool> given_up{false};
  FaultyRanks ranks(
      [&](int64_t site) {
        for (int i = 0; site == 5 && i < 6000 && !given_up; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          given_up = !all.load()->status().ok();
        }
      },
      3);  // far longer than the delay of a rank on a busy machine
  all = &*ranks;
  const Status status = ranks->Forward({}, Regime::kDecode, {}, {});
  EXPECT_TRUE(given_up) << "while it did not come";
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("rank 3 sent nothing to rank "));
  EXPECT_THAT(status.message(), HasSubstr("(place 5)"));
}

}  // namespace
}  // namespace dsv4::test
