// Who guesses what comes behind a sequence's next token (docs/speculation.md). A guess may be anything: what is emitted
// does not depend on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/status.h"
#include "dsv4/types.h"
#include "engine/sampling/sampler_impl.h"
#include "engine/sessions/session.h"

namespace dsv4 {

struct Draft {
  // Of the sequence: what has been processed, and the token behind that.
  const SessionImpl* session = nullptr;
  SamplerImpl* sampler = nullptr;  // as it was once Propose returns; null: not ours
  TokenId next = -1;
  int64_t most = 0;     // tokens wanted; 0: none
  int64_t longest = 0;  // the most that drafts have: passes may be made for so many, as those repeat

  std::vector<TokenId> tokens;    // out: `most` at most
  std::vector<float> confidence;  // out, of each of them: probability that it is accepted when those before it are
  int64_t match = 0;              // the drafter's own: what its guess rests on

  void Shorten(size_t to) {
    tokens.resize(std::min(tokens.size(), to));
    confidence.resize(std::min(confidence.size(), to));
  }
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual int64_t max_tokens() const = 0;         // of a draft, unless the caller asks for a number
  virtual bool is_free() const { return false; }  // Propose takes no time of the model's device
  // Fills the drafts, which come without tokens.
  virtual Status Propose(std::span<Draft> drafts) = 0;
  // Returns true if the device can make the drafts itself, by the model's draft module or because they are known. Then
  // appends the expected acceptance probability of each of the first `tokens` positions, whatever the tokens are.
  virtual bool Foresees(int64_t /*tokens*/, std::vector<float>* /*confidence*/) const { return false; }
  // Whether a draft's tokens are made together, in a time that hardly depends on their number. Each of them is known
  // better then than it was foreseen, so whoever sees drafts cuts those that are made.
  virtual bool makes_at_once() const { return false; }
  // Whether the last Propose did what a repeated one does not, so that its time says nothing.
  virtual bool was_first() const { return false; }
  // Of such drafts, those that are known: tokens of the session from position `from` on. Good until the next
  // call for this session.
  struct Known {
    std::span<const TokenId> tokens;
    int64_t from = 0;
  };
  virtual Known KnownOf(const SessionImpl& /*session*/) { return {}; }
  // How many tokens of a draft, of Propose's, which may have been cut since, or a foreseen one, were accepted.
  virtual void Observe(const Draft& /*draft*/, int64_t /*accepted*/) {}
};

}  // namespace dsv4
