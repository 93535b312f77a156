// Session: one timeline of tokens with its KV state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Tokens that Session::Truncate takes back at most: the rings of a session hold that many more than the model reads.
inline constexpr int64_t kMaxTakenBack = 8;

class Session {
 public:
  virtual ~Session() = default;

  // Tokens so far, in order; the next one gets position tokens().size().
  virtual const std::vector<TokenId>& tokens() const = 0;

  // Appends tokens: a prompt of so many tokens, in chunks of EngineOptions::prefill_chunk; one token behind others is a
  // decode row (StepItem says what that means on a GPU). `logits` is [1, V] (kLast), [tokens, V] (kAll) or
  // untouched (kNone). Errors: kInvalidArgument (an id outside the vocabulary: nothing is appended),
  // kResourceExhausted (context limit: nothing is appended; memory), kCancelled (by `progress`, between two chunks:
  // the chunks before it stay appended).
  virtual Status Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                        const ProgressFn& progress = {}) = 0;

  // Forgets the tokens from `num_tokens` on. What follows has the bits that it would have had without them; snapshots
  // stay as they are. Errors, after which nothing has changed: kInvalidArgument (more tokens than there are; more than
  // kMaxTakenBack below the most that this timeline ever had, but for 0: snapshots carry that number along),
  // kResourceExhausted.
  virtual Status Truncate(int64_t num_tokens) = 0;

  // Forgets everything.
  virtual void Reset() = 0;

  // The state after tokens(), kept for other sessions to go on from (snapshot.h). Errors: kInvalidArgument (no tokens
  // yet), kResourceExhausted.
  virtual Result<std::shared_ptr<const KvSnapshot>> Snapshot() = 0;

  // Bytes of KV state now held, and those of them that came from no snapshot and went into none.
  virtual int64_t memory_bytes() const = 0;
  virtual int64_t own_bytes() const = 0;
};

}  // namespace dsv4
