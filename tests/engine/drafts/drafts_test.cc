// Drafts change nothing: the cases of all devices, on the CPU, and cases that are independent of the device.
#include "engine/drafts/draft_cases.h"

namespace dsv4::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, DraftCases,
                         testing::Values(DraftedModel{"flash-nvfp4"}, DraftedModel{"flash-nvfp4", "cpu*2", true},
                                         DraftedModel{"flash-mtp", "cpu", true, Speculate::kMtp},
                                         DraftedModel{"flash-dspark", "cpu", false, Speculate::kDspark}),
                         NameOf);

// Predicts that its second token does not pay.
class Foresighted : public Drafter {
 public:
  int64_t max_tokens() const override { return 3; }
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override {
    for (int64_t i = 0; i < tokens; ++i) confidence->push_back(i == 1 ? 0.2f : 0.9f);
    return true;
  }
  Status Propose(std::span<Draft> drafts) override {
    for (Draft& d : drafts) {
      EXPECT_LE(d.most, 1);
      EXPECT_EQ(d.longest, 1);
      d.tokens.assign(static_cast<size_t>(d.most), 3);
      d.confidence.assign(d.tokens.size(), 0.9f);
    }
    return {};
  }
  void Observe(const Draft& draft, int64_t) override { verified += std::ssize(draft.tokens); }
  int64_t verified = 0;
};

TEST(Drafts, AreMadeAsFarAsTheyWillBeVerified) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const auto engine = LoadOrFail({.model_dir = dir, .num_threads = 1, .drafts = {.threshold = 0.5f}});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  const std::vector<DraftWanted> wanted = {{.prompt = 9, .sampling = {.temperature = 0}, .max_tokens = 10},
                                           {.prompt = 12, .sampling = {.temperature = 0}, .max_tokens = 10}};
  const std::vector<DraftOutcome> plain = decode.Run(wanted, nullptr, 0);
  EXPECT_EQ(decode.Differences(wanted, plain, std::make_unique<Foresighted>(), 3), "");
  EXPECT_GE(dynamic_cast<Foresighted&>(*decode.engine().drafting().drafter).verified, 10);
}

// Makes all its drafts at once, and predicted low probabilities for them.
class AtOnce : public Drafter {
 public:
  int64_t max_tokens() const override { return 3; }
  bool makes_at_once() const override { return true; }
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override {
    confidence->insert(confidence->end(), static_cast<size_t>(tokens), 0.01f);
    return true;
  }
  Status Propose(std::span<Draft> drafts) override {
    EXPECT_EQ(drafts[0].longest, 3);
    wanted.push_back(drafts[0].most);
    drafts[0].tokens = {3, 3, 3};
    drafts[0].confidence = {0.9f, 0.9f, 0.1f};
    drafts[0].Shorten(static_cast<size_t>(drafts[0].most));
    return {};
  }
  void Observe(const Draft& draft, int64_t) override { verified.push_back(std::ssize(draft.tokens)); }
  std::vector<int64_t> wanted, verified;
};

// With a threshold, and by the benefit of drafts.
TEST(Drafts, MadeAtOnceAreCutByWhatIsKnownThen) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  for (const float threshold : {0.5f, -1.0f}) {
    const auto engine = LoadOrFail({.model_dir = dir, .num_threads = 1, .drafts = {.threshold = threshold}});
    ASSERT_NE(engine, nullptr);
    DraftedDecode decode(*engine);
    decode.UseDecode(AsOnADevice(*engine));
    const std::vector<DraftWanted> wanted = {{.prompt = 9, .sampling = {.temperature = 0}, .max_tokens = 10}};
    const std::vector<DraftOutcome> plain = decode.Run(wanted, nullptr, 0);
    DraftPolicy& policy = decode.engine().drafting().policy;
    policy = DraftPolicy(threshold);  // the times are known
    for (int64_t rows = 1; rows <= 4; ++rows) policy.AddStep(rows, 1, 1 + 0.1 * static_cast<double>(rows - 1));
    EXPECT_EQ(decode.Differences(wanted, plain, std::make_unique<AtOnce>(), 3), "");
    const auto& drafter = dynamic_cast<AtOnce&>(*decode.engine().drafting().drafter);
    ASSERT_FALSE(drafter.verified.empty());
    EXPECT_EQ(drafter.wanted[0], 3);
    EXPECT_EQ(drafter.verified[0], 2);  // (1 + 0.9 + 0.81) / 1.2
  }
}

// At the end of the context drafts become shorter, and then there are none.
TEST(Drafts, StopAtTheContextsEnd) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const auto engine = LoadOrFail({.model_dir = dir, .num_threads = 1, .max_context = 64, .drafts = {.threshold = 0}});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  for (const int64_t room : {1, 3, 9}) {  // tokens that the session still accepts, including the first one
    const std::vector<DraftWanted> wanted = {
        {.prompt = 64 - room, .sampling = {.temperature = 1.0f, .seed = 3}, .max_tokens = room},
        {.prompt = 10, .sampling = {.temperature = 1.0f, .seed = 4}, .max_tokens = 12}};
    const std::vector<DraftOutcome> plain = decode.Run(wanted, nullptr, 0);
    for (const Guess guess : kGuesses) {
      EXPECT_EQ(decode.Differences(wanted, plain, std::make_unique<Oracle>(guess, plain, engine->info().vocab_size), 7),
                "")
          << room;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
