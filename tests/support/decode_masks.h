// Engine::Decode with masks for some sequences.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"

namespace dsv4::test {

// Compares sequences with and without masks: together by Decode, and each alone by Step and Sample. The tokens must be
// equal and allowed. Requires: `prompt` has at least 40 tokens, and rows do not depend on their batch.
inline void ExpectMaskedDecodeIsStepAndSample(Engine& engine, std::span<const TokenId> prompt) {
  constexpr size_t kCount = 6;
  const int64_t v = engine.info().vocab_size;
  const auto limit = [](size_t i) { return static_cast<int64_t>(i == 4 ? 8 : 14); };
  const auto is_masked = [](size_t i) { return i % 2 == 1; };
  // Changes with every draw; at some draws everything is allowed.
  const auto allowed = [v](size_t i, size_t drawn) {
    std::vector<uint32_t> bits;
    if ((i + drawn) % 5 == 0) return bits;
    bits.resize(static_cast<size_t>(v + 31) / 32);
    for (int64_t id = 0; id < v; ++id) {
      if ((id + static_cast<int64_t>(drawn)) % (i == 1 ? 7 : 61) == 0)
        bits[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
    }
    return bits;
  };
  const auto sampler = [v](size_t i) {
    SamplingParams params{.temperature = i == 3 ? 0.0f : 0.8f, .seed = 100 + i};
    if (i == 5) params.presence_penalty = 1.0f, params.top_p = 0.9f;
    return std::move(Sampler::Create(params, v)).value();
  };
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<TokenId> first(kCount);
  std::vector<std::vector<TokenId>> want(kCount), got(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    first[i] = prompt[i];
    for (int run = 0; run < 2; ++run) {
      auto session = std::move(engine.NewSession()).value();
      ASSERT_TRUE(session->Append(prompt.first(10 + 5 * i), LogitRows::kNone, nullptr).ok());
      if (run == 1) {
        sessions.push_back(std::move(session));
        continue;
      }
      const auto draw = sampler(i);
      TokenId next = first[i];
      std::vector<float> logits;
      while (static_cast<int64_t>(want[i].size()) < limit(i)) {
        const StepItem item{
            .session = session.get(), .tokens = {&next, 1}, .rows = LogitRows::kLast, .logits = &logits};
        ASSERT_TRUE(engine.Step({&item, 1}).ok());
        const std::vector<uint32_t> bits = is_masked(i) ? allowed(i, want[i].size()) : std::vector<uint32_t>();
        const auto token = draw->Sample(logits, bits);
        ASSERT_TRUE(token.ok()) << token.status().message();
        next = token->id;
        want[i].push_back(next);
        ASSERT_TRUE(bits.empty() || (bits[static_cast<size_t>(next) / 32] >> (next % 32) & 1) != 0);
        if (i == 2 && want[i].size() == 5) break;
      }
    }
  }
  std::vector<std::unique_ptr<Sampler>> samplers;
  std::vector<std::vector<uint32_t>> bits(kCount);
  std::vector<DecodeItem> items;
  for (size_t i = 0; i < kCount; ++i) {
    samplers.push_back(sampler(i));
    items.push_back(
        {.session = sessions[i].get(), .sampler = samplers[i].get(), .first = first[i], .max_tokens = limit(i)});
    if (is_masked(i)) {
      items[i].allowed = [&, i]() -> std::span<const uint32_t> { return bits[i] = allowed(i, got[i].size()); };
    }
  }
  const Status status = engine.Decode(items, [&](size_t i, const SampledToken& token) {
    got[i].push_back(token.id);
    return !(i == 2 && got[i].size() == 5);
  });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(got, want);

  // A mask that allows nothing is an error; afterwards the sessions can continue.
  bits[1].assign(static_cast<size_t>(v + 31) / 32, 0);
  DecodeItem none{.session = sessions[1].get(), .sampler = samplers[1].get(), .first = prompt[0], .max_tokens = 3};
  none.allowed = [&]() -> std::span<const uint32_t> { return bits[1]; };
  EXPECT_EQ(engine.Decode({&none, 1}, [](size_t, const SampledToken&) { return true; }).code(),
            StatusCode::kInvalidArgument);
  none.allowed = {};
  EXPECT_TRUE(engine.Decode({&none, 1}, [](size_t, const SampledToken&) { return true; }).ok());
}

}  // namespace dsv4::test
