// Drafts: tokens that are guessed, then verified together in one step (docs/speculation.md). With or without them, the
// same tokens come out.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Who drafts. kLookup: copies from the sequence itself. kMtp, kDspark: the checkpoint's own module. kAuto: the module
// that is there, else lookup.
enum class Speculate : uint8_t { kOff, kLookup, kMtp, kDspark, kAuto };
inline constexpr std::string_view kSpeculateNames[] = {"off", "lookup", "mtp", "dspark", "auto"};

inline constexpr int64_t kMaxDraftTokens = 7;  // of a sequence in a step

// One sequence's drafts in one step.
struct Verification {
  int64_t position = 0;               // of the last token that had been processed before the step
  std::span<const TokenId> proposed;  // for position + 2 and on
  int64_t accepted = 0;               // the first so many were drawn
};

// Of an engine, since it was loaded.
struct DraftCounts {
  int64_t steps = 0;                                                       // of decoding, with drafts or without
  int64_t verifications = 0;                                               // drafts of a sequence in a step
  int64_t drafted = 0, accepted = 0;                                       // tokens
  std::array<int64_t, kMaxDraftTokens> drafted_at = {}, accepted_at = {};  // by place in the draft
  // Of decoding where drafts are allowed: making them; steps that hold some; all else.
  double draft_s = 0, verify_s = 0, rest_s = 0;
};

}  // namespace dsv4
