// Token ids and logits for tests that compare one way of running a model with another.
#pragma once

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

// Logits of 150 ids, the same in every call; empty where the model does not load.
inline std::vector<float> LogitsOfModel(const EngineOptions& options) {
  const auto engine = LoadOrFail(options);
  if (engine == nullptr) return {};
  std::vector<TokenId> tokens;
  for (int i = 0; i < 150; ++i) tokens.push_back(2 + i * 17 % 4000);
  return AllLogits(*engine, tokens);
}

}  // namespace dsv4::test
