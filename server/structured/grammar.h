// Grammars of structured output: they decide which tokens may come next. The formats that Compile takes are XGrammar's
// "structural tags" (JSON objects with a "type"); server/structured/formats.h makes them.
//
// The author of a grammar decides how much work it makes. Every call counts its steps. It ends if it takes too many
// steps or too long, or if it was cancelled.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/speculation.h"
#include "dsv4/status.h"
#include "dsv4/tokenizer.h"
#include "dsv4/types.h"

namespace dsv4::server {

struct GrammarLimits {
  double compile_s = 10;
  int64_t compile_steps = 20'000'000;
  double token_s = 2;  // to accept one token and compute which may follow
  int64_t token_steps = 2'000'000;
  int64_t states = 8'000'000;                // states that one text keeps
  int64_t states_of_all = 32'000'000;        // states that all texts keep together, about 40 bytes each
  int64_t kept_bytes = int64_t{256} << 20;   // compiled grammars that are kept; the least recently used go first
  int64_t masks_bytes = int64_t{128} << 20;  // masks that grammars may share
};

// true: the result is no longer needed.
using CancelFlag = std::shared_ptr<const std::atomic<bool>>;

// The position of one sequence in a grammar. Used by one thread at a time.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Returns the tokens that may come next, one bit per token (bit id % 32 of word id / 32). EOS is among them if the
  // text may end. Empty: all tokens. Valid until the next call.
  virtual std::span<const uint32_t> Allowed() = 0;

  // Adds the next token or text. Returns false and changes nothing if the grammar does not allow it.
  virtual bool Accept(TokenId id) = 0;
  virtual bool AcceptText(std::string_view text) = 0;

  // Removes the last `tokens` tokens: at most kMaxDraftTokens, and no text.
  virtual void Rollback(size_t tokens) = 0;

  // Returns true if the text so far is complete; more may be allowed.
  virtual bool complete() const = 0;

  // Not OK if a call exceeded a limit (kInvalidArgument, which names the limit) or was cancelled (kCancelled). The
  // matcher cannot be used any more then.
  virtual const Status& status() const = 0;
};

// A compiled grammar. Immutable; any number of sequences and threads may use it.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual std::unique_ptr<GrammarMatcher> NewMatcher(CancelFlag cancelled = nullptr) const = 0;
};

class GrammarCompiler {
 public:
  // Returns null if this build has no grammars. `vocab_size` is the model's, which may be larger than the tokenizer's.
  // Added tokens are never allowed, except the marker of tool calls. Cheap: the first Compile reads the vocabulary.
  static std::unique_ptr<GrammarCompiler> Create(const Tokenizer& tokenizer, int64_t vocab_size,
                                                 std::vector<TokenId> eos_ids, const GrammarLimits& limits = {});
  virtual ~GrammarCompiler() = default;

  // `format`: JSON text of one format. Any thread. Errors: kInvalidArgument, with the library's message or naming the
  // limit; kCancelled. With `seconds` above 0 this is the limit, and a format that failed before is not tried again.
  virtual Result<std::shared_ptr<const Grammar>> Compile(const std::string& format, CancelFlag cancelled = nullptr,
                                                         double seconds = 0) = 0;

  // Returns the grammar that Compile made of this text if it is still in a cache, otherwise null. Does not wait.
  virtual std::shared_ptr<const Grammar> Find(const std::string& format) = 0;
};

// The token that marks tags of tool calls.
inline constexpr std::string_view kDsmlMarker = "｜DSML｜";

}  // namespace dsv4::server
