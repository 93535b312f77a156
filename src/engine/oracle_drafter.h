// Drafts that are right as often as a measurement wants, at the price of another drafter's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "dsv4/measure.h"
#include "engine/drafter.h"

namespace dsv4 {

class OracleDrafter : public Drafter {
 public:
  // Sessions of known.texts outlive it.
  OracleDrafter(std::unique_ptr<Drafter> inner, KnownDrafts known, int64_t vocab_size);

  std::unique_ptr<Drafter> TakeInner() { return std::move(inner_); }

  int64_t max_tokens() const override { return inner_->max_tokens(); }
  bool is_free() const override { return inner_->is_free(); }
  Status Propose(std::span<Draft> drafts) override;
  // Where the policy decides how many there are.
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override;
  bool was_first() const override { return inner_->was_first(); }
  Known KnownOf(const SessionImpl& session) override;
  void Observe(const Draft& draft, int64_t accepted) override { inner_->Observe(draft, accepted); }

 private:
  // In place of what `inner` drafted.
  void Replace(Draft& draft);
  float confidence() const;
  // A guess where `right` comes, -1 if that is unknown, behind `before`.
  TokenId Guess(TokenId right, TokenId before);

  std::unique_ptr<Drafter> inner_;
  const KnownDrafts known_;
  const int64_t vocab_size_;
  std::map<const Session*, const KnownText*> texts_;
  uint64_t counter_ = 0;                                     // of random numbers
  std::map<const Session*, std::vector<TokenId>> foreseen_;  // of each text, token by token
};

}  // namespace dsv4
