// Shared by tests of offloaded experts: plans, and logits to compare.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4/engine.h"
#include "dsv4/inspect.h"
#include "engine/memory/memory_plan.h"
#include "support/sessions.h"

namespace dsv4::test {

inline int64_t SumOf(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

inline MemoryPlan PlanFor(const EngineOptions& options) {
  auto description = Inspect(options);
  EXPECT_TRUE(description.ok()) << description.status().message();
  return description->plan;
}

// Logits of a prompt, then of tokens one by one.
inline std::vector<float> SomeLogits(Engine& engine) {
  const auto session = engine.NewSession().value();
  std::vector<float> all, logits;
  EXPECT_TRUE(session->Append(SomeTokens(40, 3, 4096), LogitRows::kAll, &all).ok());
  for (const TokenId id : SomeTokens(20, 4, 4096)) {
    EXPECT_TRUE(session->Append(std::span(&id, 1), LogitRows::kLast, &logits).ok());
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

}  // namespace dsv4::test
