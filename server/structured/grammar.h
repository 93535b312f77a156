// Grammars of structured output: which tokens may come next. The formats that Compile takes are XGrammar's "structural
// tags" (JSON objects with a "type"); server/structured/output_form.h writes them.
//
// Whoever writes a grammar chooses how much work it makes. Every call counts its steps and ends when it takes too many,
// too long, or is no longer wanted.
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
  double token_s = 2;  // to take in one token and tell what may follow
  int64_t token_steps = 2'000'000;
  int64_t states = 8'000'000;                // that one text leaves behind
  int64_t states_of_all = 32'000'000;        // that all texts leave behind together, some 40 bytes each
  int64_t kept_bytes = int64_t{256} << 20;   // compiled grammars that are kept, by how lately they were used
  int64_t masks_bytes = int64_t{128} << 20;  // masks that grammars may have in common
};

// Set: what is being worked out is no longer wanted.
using CancelFlag = std::shared_ptr<const std::atomic<bool>>;

// One sequence's place in a grammar. One thread at a time.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // The tokens that may come next, a bit each (bit id % 32 of word id / 32), EOS among them where the text may end;
  // empty: all. Good until the next call.
  virtual std::span<const uint32_t> Allowed() = 0;

  // The token or text that comes next. False: the grammar does not allow it, and nothing has changed.
  virtual bool Accept(TokenId id) = 0;
  virtual bool AcceptText(std::string_view text) = 0;

  // The tokens taken in last have not come: kMaxDraftTokens of them at most, and no text.
  virtual void Rollback(size_t tokens) = 0;

  // The text so far is a whole one; more may be allowed.
  virtual bool complete() const = 0;

  // Not OK: a call took too much (kInvalidArgument, which names the limit) or was not wanted (kCancelled), and the
  // matcher is of no further use.
  virtual const Status& status() const = 0;
};

// Compiled; immutable, for any number of sequences and threads.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual std::unique_ptr<GrammarMatcher> NewMatcher(CancelFlag cancelled = nullptr) const = 0;
};

class GrammarCompiler {
 public:
  // Null: this build has no grammars. `vocab_size` is the model's, perhaps larger than the tokenizer's. Added tokens
  // are never allowed, but for the marker of tool calls. Cheap: the vocabulary is read at the first Compile.
  static std::unique_ptr<GrammarCompiler> Create(const Tokenizer& tokenizer, int64_t vocab_size,
                                                 std::vector<TokenId> eos_ids, const GrammarLimits& limits = {});
  virtual ~GrammarCompiler() = default;

  // `format`: JSON text of one format. Any thread. Errors: kInvalidArgument, in the library's words or naming the
  // limit; kCancelled.
  virtual Result<std::shared_ptr<const Grammar>> Compile(const std::string& format, CancelFlag cancelled = nullptr) = 0;

  // What Compile has made of this text, while it stays in a cache; else null. Does not wait.
  virtual std::shared_ptr<const Grammar> Find(const std::string& format) = 0;
};

// The token that marks tags of tool calls.
inline constexpr std::string_view kDsmlMarker = "｜DSML｜";

}  // namespace dsv4::server
