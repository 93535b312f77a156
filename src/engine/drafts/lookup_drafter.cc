#include "engine/drafts/lookup_drafter.h"

#include <algorithm>

namespace dsv4 {

namespace {

constexpr int64_t kBlock = 64;  // tokens that are looked at together

// A loop without an end in the middle, which compilers make one of whole vectors.
bool Holds(const TokenId* block, TokenId wanted) {
  int found = 0;
  for (int64_t i = 0; i < kBlock; ++i) found |= block[i] == wanted ? 1 : 0;
  return found != 0;
}

}  // namespace

int64_t LookUp(std::span<const TokenId> tokens, TokenId next, int64_t longest, int64_t shortest, int64_t most,
               std::vector<TokenId>* draft) {
  draft->clear();
  const auto n = static_cast<int64_t>(tokens.size());
  const TokenId* t = tokens.data();
  int64_t best = 0, best_end = 0;
  const auto look = [&](int64_t begin, int64_t end) {
    for (int64_t last = end - 1; last >= begin && best < longest; --last) {  // an end is behind what equals `next`
      if (t[last] != next) continue;
      int64_t length = 1;
      while (length < longest && length <= last && t[last - length] == t[n - length]) ++length;
      if (length > best) best = length, best_end = last + 1;
    }
  };
  int64_t end = n;
  for (; end >= kBlock && best < longest; end -= kBlock) {
    if (Holds(t + end - kBlock, next)) look(end - kBlock, end);
  }
  look(0, end);
  if (best < shortest) return 0;
  for (int64_t i = best_end; static_cast<int64_t>(draft->size()) < most; ++i) {
    draft->push_back(i < n ? t[i] : i == n ? next : (*draft)[static_cast<size_t>(i - n - 1)]);
  }
  return best;
}

Status LookupDrafter::Propose(std::span<Draft> drafts) {
  for (Draft& d : drafts) {
    if (d.most == 0) continue;
    d.match = LookUp(d.session->tokens(), d.next, kLongest, kShortest, d.most, &d.tokens);
    const Rate& rate = rates_[static_cast<size_t>(d.match)];
    d.confidence.assign(d.tokens.size(), static_cast<float>(rate.accepted / rate.tried));
  }
  return {};
}

void LookupDrafter::Observe(const Draft& draft, int64_t accepted) {
  constexpr double kForget = 0.98;
  Rate& rate = rates_[static_cast<size_t>(draft.match)];
  const int64_t tried = std::min(static_cast<int64_t>(draft.tokens.size()), accepted + 1);
  for (int64_t i = 0; i < tried; ++i) {
    rate.accepted = kForget * rate.accepted + (i < accepted ? 1 : 0);
    rate.tried = kForget * rate.tried + 1;
  }
}

}  // namespace dsv4
