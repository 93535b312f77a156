#include "engine/oracle_drafter.h"

#include <utility>

#include "base/random.h"

namespace dsv4 {

namespace {

// What those who are never right may hope for: the policy has to find out.
constexpr float kHope = 0.7f;

}  // namespace

OracleDrafter::OracleDrafter(std::unique_ptr<Drafter> inner, KnownDrafts known, int64_t vocab_size)
    : inner_(std::move(inner)), known_(std::move(known)), vocab_size_(vocab_size) {
  for (const KnownText& text : known_.texts) texts_[text.session] = &text;
}

Status OracleDrafter::Propose(std::span<Draft> drafts) {
  DSV4_RETURN_IF_ERROR(inner_->Propose(drafts));
  for (Draft& draft : drafts) {
    if (draft.most > 0 && texts_.contains(draft.session)) Replace(draft);
  }
  return {};
}

bool OracleDrafter::Foresees(int64_t tokens, std::vector<float>* confidence) const {
  std::vector<float> inner;
  if (known_.tokens > 0 || !inner_->Foresees(tokens, &inner)) return false;
  confidence->insert(confidence->end(), inner.size(), this->confidence());
  return true;
}

// A place is right or wrong whichever draft it is in: as often as with draws for every draft, since no draft sees more
// of the text than its first wrong token.
Drafter::Known OracleDrafter::KnownOf(const SessionImpl& session) {
  const auto at = texts_.find(&session);
  if (at == texts_.end()) return {};
  const KnownText& text = *at->second;
  std::vector<TokenId>& guesses = foreseen_[&session];
  while (guesses.size() < text.tokens.size())
    guesses.push_back(Guess(text.tokens[guesses.size()], guesses.empty() ? 0 : guesses.back()));
  return {.tokens = guesses, .from = static_cast<int64_t>(text.begin)};
}

float OracleDrafter::confidence() const { return known_.right > 0 ? static_cast<float>(known_.right) : kHope; }

TokenId OracleDrafter::Guess(TokenId right, TokenId before) {
  if (right >= 0 && RandomUniform(known_.seed, counter_++) < known_.right) return right;
  const bool repeats = RandomUniform(known_.seed, counter_++) < known_.repeats;
  const TokenId token = repeats ? before
                                : static_cast<TokenId>(RandomBits(known_.seed, counter_++) %
                                                       static_cast<uint64_t>(vocab_size_));
  return token == right ? static_cast<TokenId>((right + 1) % vocab_size_) : token;
}

void OracleDrafter::Replace(Draft& draft) {
  const KnownText& text = *texts_.at(draft.session);
  draft.tokens.clear(), draft.confidence.clear();
  TokenId before = draft.next;
  for (int64_t i = 0; i < draft.most; ++i) {
    // tokens[0] stands behind the `begin` tokens of the session; the draft's first behind those and the next one.
    const size_t at = draft.session->tokens().size() + 1 - text.begin + static_cast<size_t>(i);
    before = Guess(at < text.tokens.size() ? text.tokens[at] : -1, before);
    draft.tokens.push_back(before);
    draft.confidence.push_back(confidence());
  }
}

}  // namespace dsv4
