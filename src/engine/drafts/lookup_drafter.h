// Prompt lookup: a sequence goes on as it went on after the same tokens before.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafts/drafter.h"

namespace dsv4 {

// The draft behind tokens t[0..N-1] = `tokens`, `next`. For every end e in 1..N-1, L(e) tokens in front of e equal
// those in front of N, `longest` at most. The largest L wins, of equals the largest e; below `shortest` there is no
// draft. Token j is t[e+j], where t goes on with the draft itself. Returns L, 0 where there is none.
int64_t LookUp(std::span<const TokenId> tokens, TokenId next, int64_t longest, int64_t shortest, int64_t most,
               std::vector<TokenId>* draft);

class LookupDrafter : public Drafter {
 public:
  static constexpr int64_t kLongest = 8, kShortest = 3;

  int64_t max_tokens() const override { return 5; }
  bool is_free() const override { return true; }
  Status Propose(std::span<Draft> drafts) override;
  void Observe(const Draft& draft, int64_t accepted) override;

 private:
  // Share of tokens accepted when those before them were, lately, by the length of the match.
  struct Rate {
    double accepted = 1.2, tried = 2;  // as if seen before: a match is worth trying
  };
  std::array<Rate, kLongest + 1> rates_;
};

}  // namespace dsv4
