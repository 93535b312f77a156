// Steps that are filled with padding rows, queued and recorded: every sequence has the same bits as alone.
#include <memory>
#include <string>
#include <vector>

#include "dsv4/sampling.h"
#include "engine/ranks/recordings.h"
#include "support/cuda_mirror.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

constexpr int64_t kSteps = Recordings::kRunsBefore + 4;  // the last ones are launched from their recording

class CudaIdleRows : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    DSV4_GPU_OR_SKIP();
    engine_ = LoadOrFail({.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano", .device = "cuda"});
    ASSERT_NE(engine_, nullptr);
  }
  std::vector<TokenId> Tokens(int64_t n, int64_t sequence) {
    return SomeTokens(n, static_cast<uint64_t>(sequence) + 1, engine_->info().vocab_size);
  }
  std::unique_ptr<Session> Begin(int64_t sequence) {
    auto session = std::move(engine_->NewSession()).value();
    EXPECT_TRUE(session->Append(Tokens(3 + 17 * sequence, sequence), LogitRows::kNone, nullptr).ok());
    return session;
  }
  // Logits of kSteps steps, by sequence.
  std::vector<std::vector<float>> Step(const std::vector<int64_t>& sequences) {
    std::vector<std::vector<float>> all(sequences.size()), rows(sequences.size());
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::vector<TokenId>> more;
    for (const int64_t s : sequences) {
      sessions.push_back(Begin(s));
      more.push_back(Tokens(kSteps, 100 + s));
    }
    for (size_t step = 0; step < kSteps; ++step) {
      std::vector<StepItem> items;
      for (size_t i = 0; i < sequences.size(); ++i) {
        items.push_back({.session = sessions[i].get(),
                         .tokens = {&more[i][step], 1},
                         .rows = LogitRows::kLast,
                         .logits = &rows[i]});
      }
      EXPECT_TRUE(engine_->Step(items).ok());
      for (size_t i = 0; i < sequences.size(); ++i) all[i].insert(all[i].end(), rows[i].begin(), rows[i].end());
    }
    return all;
  }
  // Tokens that the GPU draws.
  std::vector<std::vector<TokenId>> Decode(const std::vector<int64_t>& sequences) {
    std::vector<std::vector<TokenId>> drawn(sequences.size());
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<DecodeItem> items;
    for (const int64_t s : sequences) {
      sessions.push_back(Begin(s));
      auto sampler = Sampler::Create({.temperature = 0.9f, .seed = 7}, engine_->info().vocab_size);
      samplers.push_back(std::move(sampler).value());
      items.push_back(
          {.session = sessions.back().get(), .sampler = samplers.back().get(), .first = 5, .max_tokens = kSteps});
    }
    const TokenFn fn = [&](size_t i, const SampledToken& token) {
      drawn[i].push_back(token.id);
      return true;
    };
    EXPECT_TRUE(engine_->Decode(items, fn).ok());
    return drawn;
  }

  std::unique_ptr<Engine> engine_;
};
INSTANTIATE_TEST_SUITE_P(Sequences, CudaIdleRows, ::testing::Values(9, 13, 31));

TEST_P(CudaIdleRows, ChangeNoBitOfOthers) {
  std::vector<int64_t> sequences;
  for (int64_t s = 0; s < GetParam(); ++s) sequences.push_back(s);
  const auto logits = Step(sequences);
  const auto drawn = Decode(sequences);
  for (const int64_t s : sequences) {
    const auto i = static_cast<size_t>(s);
    EXPECT_EQ(Step({s})[0], logits[i]) << s;
    EXPECT_EQ(Decode({s})[0], drawn[i]) << s;
  }
}

}  // namespace
}  // namespace dsv4::test
