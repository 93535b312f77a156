// KV snapshots on a GPU: the same bits after the same steps, also from a file.

#include "dsv4/snapshot.h"
#include "dsv4/sampling.h"
#include "io/test_files.h"
#include "support/cuda_mirror.h"
#include "support/fixture.h"

namespace dsv4::test {
namespace {

EngineOptions GpuOptions(const std::string& dir, bool batch_invariant) {
  EngineOptions options;
  options.model_dir = dir;
  options.device = "cuda";
  options.batch_invariant = batch_invariant;
  return options;
}

std::vector<TokenId> Repeated(const std::vector<int32_t>& ids, size_t count) {
  std::vector<TokenId> out;
  while (out.size() < count) out.push_back(ids[out.size() % ids.size()]);
  return out;
}

// `steps` tokens one by one, with their logits.
std::vector<float> Steps(Session& session, std::span<const TokenId> tokens) {
  std::vector<float> all, row;
  for (const TokenId id : tokens) {
    EXPECT_TRUE(session.Append({&id, 1}, LogitRows::kLast, &row).ok());
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TEST(CudaSnapshot, GoesOnWithTheSameBits) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const std::vector<TokenId> ids = Repeated(ReferenceArray(dir, "prompt_ids").i32, 700);
  const auto engine = LoadOrFail(GpuOptions(dir, false));
  ASSERT_NE(engine, nullptr);
  const dsv4::test::TempDir folder;
  for (const size_t cut : {1, 3, 4, 127, 128, 131, 255, 256, 257, 300, 512, 600}) {
    const std::span<const TokenId> tail = std::span(ids).subspan(cut, 20);
    auto session = std::move(engine->NewSession()).value();
    ASSERT_TRUE(session->Append(std::span(ids).first(cut), LogitRows::kNone, nullptr).ok());
    const auto snapshot = session->Snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
    const std::vector<float> expected = Steps(*session, tail);
    session.reset();
    auto first = std::move(engine->NewSession(**snapshot)).value(),
         second = std::move(engine->NewSession(**snapshot)).value();
    EXPECT_EQ(Steps(*first, std::span(ids).subspan(0, 20)).size(), expected.size());  // changes the KV state
    EXPECT_EQ(Steps(*second, tail), expected) << "cut at " << cut;
    const std::string path = folder / "a";
    ASSERT_TRUE((*snapshot)->Save(path, "note").ok());
    const auto loaded = engine->LoadSnapshot(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(Steps(*std::move(engine->NewSession(**loaded)).value(), tail), expected)
        << "cut at " << cut << ", from a file";
  }
  EXPECT_EQ(engine->kv_bytes(), 0);
}

// Decode leaves a step after the last token in the cache; a later snapshot must not depend on it.
TEST(CudaSnapshot, AfterDecodeTheSameTokensFollow) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const std::vector<TokenId> ids = Repeated(ReferenceArray(dir, "prompt_ids").i32, 252);
  const auto engine = LoadOrFail(GpuOptions(dir, false));
  ASSERT_NE(engine, nullptr);
  const auto decode = [&](Session& session, TokenId first, int64_t count) {
    std::vector<TokenId> out;
    auto sampler = std::move(Sampler::Create({.temperature = 0}, engine->info().vocab_size)).value();
    const DecodeItem item{.session = &session, .sampler = sampler.get(), .first = first, .max_tokens = count};
    EXPECT_TRUE(engine
                    ->Decode({&item, 1},
                             [&](size_t, const SampledToken& t) {
                               out.push_back(t.id);
                               return true;
                             })
                    .ok());
    return out;
  };
  auto session = std::move(engine->NewSession()).value();
  ASSERT_TRUE(session->Append(ids, LogitRows::kNone, nullptr).ok());
  const std::vector<TokenId> written = decode(*session, 7, 9);
  const auto snapshot = std::move(session->Snapshot()).value();
  EXPECT_EQ(snapshot->tokens().size(), ids.size() + 9);
  const std::vector<TokenId> expected = decode(*session, written.back(), 40);
  session.reset();
  for (int i = 0; i < 2; ++i) {
    auto again = std::move(engine->NewSession(*snapshot)).value();
    EXPECT_EQ(decode(*again, written.back(), 40), expected);
  }
}

TEST(CudaSnapshot, InBatchInvariantModeEqualsComputingAnew) {
  DSV4_GPU_OR_SKIP();
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const std::vector<TokenId> ids = Repeated(ReferenceArray(dir, "prompt_ids").i32, 400);
  const auto engine = LoadOrFail(GpuOptions(dir, true));
  ASSERT_NE(engine, nullptr);
  const auto v = static_cast<ptrdiff_t>(engine->info().vocab_size);
  const std::vector<float> all = AllLogits(*engine, ids);
  for (const size_t cut : {5, 129, 257, 300}) {
    auto session = std::move(engine->NewSession()).value();
    ASSERT_TRUE(session->Append(std::span(ids).first(cut), LogitRows::kNone, nullptr).ok());
    const auto snapshot = std::move(session->Snapshot()).value();
    auto next = std::move(engine->NewSession(*snapshot)).value();
    std::vector<float> logits;
    ASSERT_TRUE(next->Append(std::span(ids).subspan(cut), LogitRows::kAll, &logits).ok());
    EXPECT_EQ(logits, std::vector<float>(all.begin() + static_cast<ptrdiff_t>(cut) * v, all.end())) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace dsv4::test
