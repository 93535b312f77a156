// Token ids and logits for tests that compare one way of running a model with another.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "support/fixture.h"

namespace dsv4::test {

// Ids below `vocab` that follow from the seed (Knuth's 64-bit linear congruential generator).
inline std::vector<TokenId> SomeTokens(int64_t n, uint64_t seed, int64_t vocab) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<TokenId>((seed >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

// A snapshot, and the result of a session that continues from it with `more`: logits of every token.
struct Continuation {
  std::shared_ptr<const KvSnapshot> snapshot;
  std::vector<TokenId> more = SomeTokens(20, 8, 4096);
  std::vector<float> logits;
};
// A session from the snapshot must give the same bits. For models with at least 4,096 ids.
inline Continuation ExpectSnapshotGoesOn(Engine& engine) {
  Continuation c;
  const auto session = std::move(engine.NewSession()).value();
  EXPECT_TRUE(session->Append(SomeTokens(300, 7, 4096), LogitRows::kNone, nullptr).ok());
  c.snapshot = std::move(session->Snapshot()).value();
  std::vector<float> got;
  EXPECT_TRUE(session->Append(c.more, LogitRows::kAll, &c.logits).ok());
  EXPECT_TRUE(std::move(engine.NewSession(*c.snapshot)).value()->Append(c.more, LogitRows::kAll, &got).ok());
  EXPECT_EQ(got, c.logits);
  return c;
}

// Logits of 150 ids, the same ids in every call; empty: the model does not load.
inline std::vector<float> LogitsOfModel(const EngineOptions& options) {
  const auto engine = LoadOrFail(options);
  if (engine == nullptr) return {};
  std::vector<TokenId> tokens;
  for (int i = 0; i < 150; ++i) tokens.push_back(2 + i * 17 % 4000);
  return AllLogits(*engine, tokens);
}

}  // namespace dsv4::test
