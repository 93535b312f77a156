// Grammars of structured output: which tokens may come next. The formats that Compile takes are XGrammar's "structural
// tags" (JSON objects with a "type"); server/structured/output_form.h writes them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/status.h"
#include "dsv4/tokenizer.h"
#include "dsv4/types.h"

namespace dsv4::server {

// One sequence's place in a grammar. One thread at a time.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // The tokens that may come next, a bit each (bit id % 32 of word id / 32), EOS among them where the text may end; empty: all.
  // Good until the next call.
  virtual std::span<const uint32_t> Allowed() = 0;

  // The token or text that comes next. False: the grammar does not allow it, and nothing has changed.
  virtual bool Accept(TokenId id) = 0;
  virtual bool AcceptText(std::string_view text) = 0;

  // The text so far is a whole one; more may be allowed.
  virtual bool complete() const = 0;
};

// Compiled; immutable, for any number of sequences and threads.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual std::unique_ptr<GrammarMatcher> NewMatcher() const = 0;
};

class GrammarCompiler {
 public:
  // Null: this build has no grammars. `vocab_size` is the model's, perhaps larger than the tokenizer's. Added tokens are
  // never allowed, but for the marker of tool calls. Cheap: the vocabulary is read at the first Compile.
  static std::unique_ptr<GrammarCompiler> Create(const Tokenizer& tokenizer, int64_t vocab_size,
                                                 std::vector<TokenId> eos_ids);
  virtual ~GrammarCompiler() = default;

  // `format`: JSON text of one format. The same text is compiled once, while it stays in a cache. Any thread. Errors:
  // kInvalidArgument, in the library's words.
  virtual Result<std::shared_ptr<const Grammar>> Compile(const std::string& format) = 0;
};

// The token that marks tags of tool calls.
inline constexpr std::string_view kDsmlMarker = "｜DSML｜";

}  // namespace dsv4::server
