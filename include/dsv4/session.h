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

class Session {
 public:
  virtual ~Session() = default;

  // Tokens so far, in order; the next one gets position tokens().size().
  virtual const std::vector<TokenId>& tokens() const = 0;

  // Appends tokens: a prompt of so many tokens, in chunks of EngineOptions::prefill_chunk; one token behind others is a decode row
  // (StepItem says what that means on a GPU). `logits` is [1, V] (kLast), [tokens, V] (kAll) or
  // untouched (kNone). Errors: kInvalidArgument (an id outside the vocabulary: nothing is appended),
  // kResourceExhausted (context limit: nothing is appended; memory), kCancelled (by `progress`, between two chunks:
  // the chunks before it stay appended).
  virtual Status Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                        const ProgressFn& progress = {}) = 0;

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
