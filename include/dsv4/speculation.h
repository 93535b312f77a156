// Speculative decoding: a drafter guesses tokens, and one step verifies several of them (docs/speculation.md). The
// emitted tokens are the same with and without drafts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// The drafter. kLookup: copies tokens from earlier in the sequence. kMtp, kDspark: the draft module of the checkpoint.
// kAuto: the draft module if the checkpoint has one, otherwise lookup.
enum class Speculate : uint8_t { kOff, kLookup, kMtp, kDspark, kAuto };
inline constexpr std::string_view kSpeculateNames[] = {"off", "lookup", "mtp", "dspark", "auto"};

inline constexpr int64_t kMaxDraftTokens = 7;  // per sequence and step

// The draft of one sequence in one step, after its verification.
struct Verification {
  int64_t position = 0;               // of the last token that was processed before the step
  std::span<const TokenId> proposed;  // draft tokens for positions position + 2, position + 3, ...
  int64_t accepted = 0;               // the first `accepted` of `proposed` were sampled
};

// Totals of an engine since it was loaded.
struct DraftCounts {
  int64_t steps = 0;                                                       // decode steps, with drafts and without
  int64_t verifications = 0;                                               // verified drafts, one per sequence and step
  int64_t drafted = 0, accepted = 0;                                       // tokens
  std::array<int64_t, kMaxDraftTokens> drafted_at = {}, accepted_at = {};  // tokens, by position in the draft
  // Seconds of decoding with a drafter: making drafts; steps that verify at least one draft; everything else.
  double draft_s = 0, verify_s = 0, rest_s = 0;
};

}  // namespace dsv4
