// Drafts that are right as often as a measurement wants, at the price of another drafter's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "dsv4/measure.h"
#include "engine/drafts/drafter.h"

namespace dsv4 {

class OracleDrafter : public Drafter {
 public:
  // Sessions of known.texts outlive it.
  OracleDrafter(std::unique_ptr<Drafter> inner, KnownDrafts known, int64_t vocab_size);

  std::unique_ptr<Drafter> TakeInner() { return std::move(inner_); }

  int64_t max_tokens() const override { return inner_->max_tokens(); }
  bool is_free() const override { return inner_->is_free(); }
  Status Propose(std::span<Draft> drafts) override;
  // Where the policy decides how many there are; of a fixed number where nobody makes them, for what it takes to make
  // and to verify them is told apart.
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override;
  bool makes_at_once() const override { return inner_->makes_at_once(); }
  bool was_first() const override { return inner_->was_first(); }
  Known KnownOf(const SessionImpl& session) override;
  void Observe(const Draft& draft, int64_t accepted) override { inner_->Observe(draft, accepted); }

 private:
  // What is known of a session. A place is right or wrong whichever draft it is in: no draft sees more of the text than
  // its first wrong token.
  struct Text {
    const KnownText* known = nullptr;
    std::vector<bool> right;        // of each place
    std::vector<TokenId> foreseen;  // guesses for all places, once they were asked for
  };

  // In place of what `inner` drafted.
  void Replace(Draft& draft);
  float confidence() const;
  // A guess for place `at`, behind `before`; places behind the known ones have any token.
  TokenId Guess(const Text& text, size_t at, TokenId before);

  std::unique_ptr<Drafter> inner_;
  const KnownDrafts known_;
  const int64_t vocab_size_;
  std::map<const Session*, Text> texts_;
  uint64_t counter_ = 0;  // of random numbers
};

}  // namespace dsv4
