// The functions of dsv4/measure.h that also work on a GPU.
#include "dsv4/measure.h"

#include <cmath>

#include "dsv4/engine.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

// The logits after a context of `tokens` tokens. Only the first two pages of it are computed.
std::vector<float> BehindCopies(const std::string& device, size_t tokens) {
  EngineOptions options;
  options.synthetic.shape = "nano";
  options.device = device;
  options.kv_dtype = KvDtype::kF32;  // no roundings, which could differ
  options.index_dtype = IndexDtype::kF32;
  const auto engine = LoadOrFail(options);
  if (engine == nullptr) return {};
  const auto session = std::move(engine->NewSession()).value();
  const std::vector<TokenId> ids = SomeTokens(static_cast<int64_t>(tokens) + 1, 1, engine->info().vocab_size);
  EXPECT_FALSE(AppendCopies(*session, ids).ok());  // nothing to copy from
  EXPECT_TRUE(session->Append(std::span(ids).first(512), LogitRows::kNone, nullptr).ok());
  EXPECT_TRUE(AppendCopies(*session, std::span(ids).subspan(512, tokens - 512)).ok()) << device;
  std::vector<float> logits;
  EXPECT_TRUE(session->Append(std::span(ids).last(1), LogitRows::kLast, &logits).ok()) << device;
  EXPECT_EQ(session->tokens(), ids);
  return logits;
}

TEST(CudaMeasure, CopiedContextsAreThoseOfTheCpu) {
  DSV4_GPU_OR_SKIP();
  for (const size_t tokens : {1000, 3072}) {
    const std::vector<float> want = BehindCopies("cpu", tokens);
    for (const char* device : {"cuda", "cuda:0*2"})
      EXPECT_TRUE(RelativeRmsWithin(BehindCopies(device, tokens), want, 2e-3)) << device << ", " << tokens;
  }
}

}  // namespace
}  // namespace dsv4::test
