// Greedy and sampled runs of fixtures with draft modules, with a record of the drafts.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4/sampling.h"
#include "support/fixture.h"

namespace dsv4::test {

struct Verified {
  int64_t position, proposed, accepted;
  bool operator==(const Verified&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Verified& v) {
  return out << v.position << ": " << v.accepted << " of " << v.proposed;
}

struct Generated {
  std::vector<TokenId> ids;
  std::vector<Verified> verified;
};

// `count` tokens after the prompt, and the drafts that were made.
inline Generated Generate(Engine& engine, std::span<const TokenId> prompt, int64_t count,
                          const SamplingParams& params) {
  Generated run;
  auto session = engine.NewSession().value();
  auto sampler = Sampler::Create(params, engine.info().vocab_size).value();
  std::vector<float> logits;
  EXPECT_TRUE(session->Append(prompt, LogitRows::kLast, &logits).ok());
  run.ids.push_back(sampler->Sample(logits).value().id);
  DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = run.ids[0], .max_tokens = count - 1};
  item.on_verification = [&](const Verification& v) {
    run.verified.push_back({v.position, static_cast<int64_t>(v.proposed.size()), v.accepted});
  };
  const Status status = engine.Decode({&item, 1}, [&](size_t, const SampledToken& token) {
    run.ids.push_back(token.id);
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return run;
}

// The fixture's expectation: drafts for positions after its last token count as rejected.
inline std::vector<Verified> Expected(const std::string& dir, const std::string& k, int64_t drafts) {
  const Array at = ReferenceArray(dir, "spec_positions." + k), accepted = ReferenceArray(dir, "spec_accepted." + k);
  const Array proposed = drafts == 0 ? ReferenceArray(dir, "spec_proposed." + k) : Array{};
  std::vector<Verified> all;
  for (size_t i = 0; i < at.i32.size(); ++i) {
    const int64_t some = drafts == 0 ? proposed.i32[i] : drafts;
    if (some > 0) all.push_back({at.i32[i], some, accepted.i32[i]});
  }
  return all;
}

// `drafts` per step, or those with probability above `threshold`.
inline void ExpectAcceptedCounts(const std::string& device, const std::string& dir, Speculate module,
                                 const std::string& k, int64_t drafts, float threshold) {
  const std::vector<TokenId> prompt = ReferenceArray(dir, "prompt_ids").i32;
  const std::vector<TokenId> greedy = ReferenceArray(dir, "greedy_ids").i32;
  EngineOptions options = ExactOptions(dir);
  options.device = device;
  options.drafts.speculate = module;
  options.drafts.tokens = drafts;
  options.drafts.threshold = threshold;
  auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const auto count = static_cast<int64_t>(greedy.size());
  Generated run = Generate(*engine, prompt, count + kMaxDraftTokens + 1, {.temperature = 0});
  ASSERT_GE(static_cast<int64_t>(run.ids.size()), count);
  EXPECT_EQ(std::vector<TokenId>(run.ids.begin(), run.ids.begin() + count), greedy);
  const int64_t last = static_cast<int64_t>(prompt.size()) + count - 1;
  std::erase_if(run.verified, [&](const Verified& v) { return v.position + 1 >= last; });
  for (Verified& v : run.verified) v.accepted = std::min(v.accepted, last - v.position - 1);
  EXPECT_EQ(run.verified, Expected(dir, k, threshold > 0 ? 0 : drafts)) << "k " << k;
}

}  // namespace dsv4::test
