// Experts that swap while sequences are decoded, for tests of offloaded experts.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dsv4/sampling.h"
#include "engine/engine_impl.h"
#include "gtest/gtest.h"
#include "support/random.h"
#include "support/sessions.h"

namespace dsv4::test {

// Random swaps in four of Flash's layers, in parallel with queued work. Continues swaps in progress, or begins some.
// Returns how many have begun.
inline int64_t SwapOn(Engine& engine, Random& random) {
  const Ranks& ranks = dynamic_cast<EngineImpl&>(engine).ranks();
  bool done = true;
  for (int r = 0; r < ranks.count(); ++r)
    done = ranks.runner(r).model().ContinueSwaps(ranks.runner(r).device()) && done;
  if (!done) return 0;
  std::vector<ExpertSwap> swaps;
  for (int i = 0; i < 200; ++i) swaps.push_back({random.Index(4), random.Index(256), random.Index(256)});
  int64_t begun = 0;
  for (int r = 0; r < ranks.count(); ++r) begun += ranks.runner(r).model().BeginSwaps(swaps);
  return begun;
}

// The tokens that several sequences draw, step by step; `with_token` is called between the steps.
inline std::vector<std::vector<TokenId>> DecodedTokens(Engine& engine, int64_t max_tokens,
                                                       const std::function<void()>& with_token) {
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::unique_ptr<Sampler>> samplers;
  std::vector<DecodeItem> items;
  for (uint64_t i = 0; i < 5; ++i) {
    sessions.push_back(engine.NewSession().value());
    samplers.push_back(Sampler::Create({.temperature = 1, .seed = i}, engine.info().vocab_size).value());
    EXPECT_TRUE(sessions.back()->Append(SomeTokens(50, i, engine.info().vocab_size), LogitRows::kNone, nullptr).ok());
    items.push_back({.session = sessions.back().get(),
                     .sampler = samplers.back().get(),
                     .first = static_cast<TokenId>(i + 7),
                     .max_tokens = max_tokens});
  }
  std::vector<std::vector<TokenId>> ids(items.size());
  const Status status = engine.Decode(items, [&](size_t item, const SampledToken& token) {
    ids[item].push_back(token.id);
    with_token();
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return ids;
}

}  // namespace dsv4::test
