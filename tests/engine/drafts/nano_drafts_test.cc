// The bundled model's draft modules: they change nothing, and their acceptance is that of a working module.
#include "engine/drafts/own_module.h"

namespace dsv4::test {
namespace {

class NanoDrafts : public ::testing::TestWithParam<Speculate> {};
INSTANTIATE_TEST_SUITE_P(Modules, NanoDrafts, testing::Values(Speculate::kMtp, Speculate::kDspark),
                         [](const auto& instance) {
                           return std::string(instance.param == Speculate::kMtp ? "Mtp" : "Dspark");
                         });

TEST_P(NanoDrafts, ChangeNothing) {
  const auto off = LoadOrFail({.model_dir = DSV4_SOURCE_DIR "/models/nano", .num_threads = 1});
  OwnModule own(GetParam(), "cpu", 1);
  ASSERT_TRUE(off != nullptr && own);
  const std::vector<DraftWanted> all = EveryOption(11);
  // With the module's rings, which are in the states, and without a module.
  const std::vector<DraftOutcome> plain = own.Run(all, 0), expected = DraftedDecode(*off).Run(all, nullptr, 0);
  const std::vector<DraftOutcome> drafted = own.Run(all, 4);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(plain[i].ids, expected[i].ids) << i;
    EXPECT_EQ(plain[i].logprobs, expected[i].logprobs) << i;
    EXPECT_EQ(plain[i].next_row, expected[i].next_row) << i;
    EXPECT_TRUE(drafted[i] == plain[i]) << i << (drafted[i].ids == plain[i].ids ? "" : ": ids");
  }
  EXPECT_GT(own.counts().accepted, 0);
  EXPECT_LT(own.counts().accepted, own.counts().drafted);
}

// A greedy reply to "What is 27 + 48?", column by column. By the modules' published scores (models/nano/README.md),
// about 2.9 tokens of a draft of three are accepted.
TEST_P(NanoDrafts, AreMostlyRightAboutASum) {
  const auto engine = LoadOrFail({.model_dir = DSV4_SOURCE_DIR "/models/nano",
                                  .num_threads = 1,
                                  .drafts = {.speculate = GetParam(), .tokens = 3, .threshold = 0}});
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> prompt = {0, 4052, 840, 341, 223, 20, 25, 582, 223, 22, 26, 33, 4053, 4070};
  const auto session = std::move(engine->NewSession()).value();
  std::vector<float> logits;
  ASSERT_TRUE(session->Append(prompt, LogitRows::kLast, &logits).ok());
  const auto sampler = std::move(Sampler::Create({.temperature = 0}, engine->info().vocab_size)).value();
  const TokenId first = sampler->Sample(logits).value().id;
  int64_t tokens = 0;
  const DecodeItem item{.session = session.get(),
                        .sampler = sampler.get(),
                        .first = first,
                        .max_tokens = 64,
                        .stop_ids = engine->info().eos_token_ids};
  ASSERT_TRUE(engine->Decode({&item, 1}, [&](size_t, const SampledToken&) { return ++tokens > 0; }).ok());
  const DraftCounts counts = engine->draft_counts();
  EXPECT_GE(tokens, 20);
  EXPECT_GE(static_cast<double>(tokens) / static_cast<double>(counts.steps), 2.5) << counts.steps << " steps";
}

}  // namespace
}  // namespace dsv4::test
