// Session: one timeline of tokens with its KV state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/export.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Maximum number of tokens that Session::Truncate can remove. The window rings of a session have this many spare rows.
inline constexpr int64_t kMaxTruncatedTokens = 8;

class DSV4_API Session {
 public:
  virtual ~Session() = default;

  // Returns the tokens of the session, in order. The next token gets position tokens().size().
  virtual const std::vector<TokenId>& tokens() const = 0;

  // Appends tokens as a prompt, in chunks of EngineOptions::prefill_chunk. A single token is appended as a decode row
  // unless the session is empty (see StepItem). Writes `logits` [1, V] (kLast) or [tokens, V] (kAll); does not write
  // them with kNone. Errors: kInvalidArgument (an id outside the vocabulary; nothing is appended), kResourceExhausted
  // (context limit; nothing is appended) or (memory), kCancelled (by `progress`, between two chunks, or by
  // Engine::SetStopped; the chunks before stay appended).
  virtual Status Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                        const ProgressFn& progress = {}) = 0;

  // The same with memory of the caller for the logits: exactly rows * V floats, [rows, V]; none with kNone. Any other
  // size is kInvalidArgument, and nothing is appended.
  Status Append(std::span<const TokenId> tokens, LogitRows rows, std::span<float> logits,
                const ProgressFn& progress = {}) {
    return AppendInto(tokens, rows, logits, progress);
  }

  // Removes the tokens at positions from `num_tokens`. Later results have the same bits as if these tokens had never
  // been appended. Snapshots do not change. Errors, after which nothing has changed: kInvalidArgument (`num_tokens` is
  // larger than the number of tokens, or is not 0 and more than kMaxTruncatedTokens below the largest number of tokens
  // that the session ever had; a snapshot keeps this largest number), kResourceExhausted.
  virtual Status Truncate(int64_t num_tokens) = 0;

  // Removes all tokens.
  virtual void Reset() = 0;

  // Returns the state after tokens(), from which other sessions can continue (snapshot.h). Errors: kInvalidArgument
  // (the session is empty), kResourceExhausted.
  virtual Result<std::shared_ptr<const KvSnapshot>> Snapshot() = 0;

  // Returns the bytes of KV state that the session holds; own_bytes() without the memory shared with snapshots.
  virtual int64_t memory_bytes() const = 0;
  virtual int64_t own_bytes() const = 0;

 protected:
  virtual Status AppendInto(std::span<const TokenId> tokens, LogitRows rows, std::span<float> logits,
                            const ProgressFn& progress) {
    (void)tokens, (void)rows, (void)logits, (void)progress;
    return Unsupported("this session writes logits to vectors only");
  }
};

}  // namespace dsv4
