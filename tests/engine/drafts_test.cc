// Drafts change nothing: the cases of every device, on the CPU, and what is the same on all.
#include "engine/draft_cases.h"

namespace dsv4::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, DraftCases,
                         testing::Values(DraftedModel{"flash-nvfp4"}, DraftedModel{"flash-nvfp4", "cpu*2", true},
                                         DraftedModel{"flash-mtp", "cpu", true, Speculate::kMtp},
                                         DraftedModel{"flash-dspark", "cpu", false, Speculate::kDspark}),
                         NameOf);

// At the context's end drafts become shorter and then none.
TEST(Drafts, StopAtTheContextsEnd) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const auto engine = LoadOrFail({.model_dir = dir, .num_threads = 1, .max_context = 64, .draft_threshold = 0});
  ASSERT_NE(engine, nullptr);
  DraftedDecode decode(*engine);
  for (const int64_t room : {1, 3, 9}) {  // tokens that the session still takes, the first one included
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
