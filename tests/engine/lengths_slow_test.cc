// Prompt lengths around every edge, as prefill and as prefill with decode: every row must have the bits of the row in
// one long prefill. The index top-k edge is moved to 512 rows (2,048 tokens), as in Flash.

#include <filesystem>
#include <fstream>
#include <vector>

#include <unistd.h>

#include "base/json.h"
#include "support/fixture.h"

namespace dsv4::test {
namespace {

// The fixture with another index_topk, in a separate folder.
class WithTopk {
 public:
  WithTopk(const std::string& fixture, int64_t topk) {
    dir_ = std::filesystem::temp_directory_path() / ("dsv4_topk_" + std::to_string(::getpid()));
    std::filesystem::create_directories(dir_);
    auto config = ReadJsonFile(fixture + "/config.json");
    EXPECT_TRUE(config.ok());
    (*config)["index_topk"] = topk;
    std::ofstream(dir_ / "config.json") << config->dump();
    std::filesystem::remove(dir_ / "model.safetensors");
    std::filesystem::create_symlink(std::filesystem::absolute(fixture + "/model.safetensors"),
                                    dir_ / "model.safetensors");
  }
  ~WithTopk() { std::filesystem::remove_all(dir_); }
  std::string dir() const { return dir_.string(); }

 private:
  std::filesystem::path dir_;
};

class EveryEdge : public testing::TestWithParam<std::vector<size_t>> {};
INSTANTIATE_TEST_SUITE_P(All, EveryEdge, testing::Values(std::vector<size_t>{1, 4, 129, 257, 2047}));
INSTANTIATE_TEST_SUITE_P(Campaign, EveryEdge,
                         testing::Values(std::vector<size_t>{3, 5, 7, 8, 127, 128, 131, 132, 255, 256, 2048, 2049, 2050,
                                                             2051, 2052, 2053, 2054, 2055, 2056}));

TEST_P(EveryEdge, AsPrefillAndAsDecode) {
  DSV4_FIXTURE_OR_SKIP(fixture, "flash-nvfp4");
  const WithTopk model(fixture, 512);
  EngineOptions options;
  options.model_dir = model.dir();
  options.num_threads = 2;
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const int64_t v = engine->info().vocab_size;
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < 2064; ++i) tokens.push_back(static_cast<TokenId>((i * i * 31 + 17 * i + 5) % v));
  const std::vector<float> all = AllLogits(*engine, tokens);
  const auto row = [&](size_t i) {
    return std::vector<float>(all.begin() + static_cast<int64_t>(i) * v, all.begin() + static_cast<int64_t>(i + 1) * v);
  };
  for (const size_t n : GetParam()) {
    auto session = std::move(engine->NewSession()).value();
    std::vector<float> logits;
    ASSERT_TRUE(session->Append({tokens.data(), n}, LogitRows::kLast, &logits).ok());
    EXPECT_EQ(logits, row(n - 1)) << "prefill of " << n;
    for (size_t i = n; i < n + 6; ++i) {
      ASSERT_TRUE(session->Append({&tokens[i], 1}, LogitRows::kLast, &logits).ok());
      EXPECT_EQ(logits, row(i)) << "prefill of " << n << ", decode of token " << i;
    }
  }
}

// Below the edge the indexer chooses all rows. Above it, it must select: another top-k gives other logits.
TEST(Lengths, TheIndexerChoosesBeyondItsEdge) {
  DSV4_FIXTURE_OR_SKIP(fixture, "flash-nvfp4");
  const WithTopk wide(fixture, 4096);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < 200; ++i) tokens.push_back(static_cast<TokenId>((i * 37 + 11) % 500));
  auto narrow_engine = LoadOrFail(ExactOptions(fixture));  // top-k 24: edge at 96 tokens
  auto wide_engine = LoadOrFail(ExactOptions(wide.dir()));
  ASSERT_NE(narrow_engine, nullptr);
  ASSERT_NE(wide_engine, nullptr);
  const std::vector<float> narrow = AllLogits(*narrow_engine, tokens), all = AllLogits(*wide_engine, tokens);
  const int64_t v = narrow_engine->info().vocab_size;
  const auto edge = narrow.begin() + 99 * v;  // (98 + 1) / 4 = 24 rows: the last token that sees all of them
  EXPECT_TRUE(std::equal(narrow.begin(), edge, all.begin()));
  EXPECT_FALSE(std::equal(edge, narrow.end(), all.begin() + 99 * v));
}

}  // namespace
}  // namespace dsv4::test
