#include "engine/drafts/oracle_drafter.h"

#include <cmath>
#include <utility>

#include "base/random.h"

namespace dsv4 {

namespace {

// What those who are never right may hope for: the policy has to find out.
constexpr float kHope = 0.7f;

// Runs of right places, each ended by a wrong one. Chance would give runs of `length` with right^length * (1 - right);
// here their lengths are that distribution's quantiles in an order of low discrepancy, so a text of any length has as
// many of each as are to be expected.
class Runs {
 public:
  Runs(double right, uint64_t seed) : right_(right), quantile_(RandomUniform(seed, 0)) {}

  bool NextIsRight() {
    if (right_ <= 0 || right_ >= 1) return right_ > 0;
    if (left_ < 0) {
      constexpr double kGolden = 0.6180339887498949;
      quantile_ += quantile_ + kGolden < 1 ? kGolden : kGolden - 1;
      left_ = static_cast<int64_t>(std::log1p(-quantile_) / std::log(right_));
    }
    return left_-- > 0;
  }

 private:
  const double right_;
  double quantile_;
  int64_t left_ = -1;  // of the run; -1: it has ended
};

}  // namespace

OracleDrafter::OracleDrafter(std::unique_ptr<Drafter> inner, KnownDrafts known, int64_t vocab_size)
    : inner_(std::move(inner)), known_(std::move(known)), vocab_size_(vocab_size) {
  Runs runs(known_.acceptance, known_.seed);
  for (const KnownText& text : known_.texts) {
    Text& to = texts_[text.session];
    to.known = &text;
    while (to.right.size() < text.tokens.size()) to.right.push_back(runs.NextIsRight());
  }
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
  const bool foresees = known_.tokens > 0 ? inner_->is_free() && tokens <= known_.tokens
                                          : inner_->Foresees(tokens, &inner);
  if (foresees) confidence->insert(confidence->end(), static_cast<size_t>(tokens), this->confidence());
  return foresees;
}

Drafter::Known OracleDrafter::KnownOf(const SessionImpl& session) {
  const auto at = texts_.find(&session);
  if (at == texts_.end()) return {};
  Text& text = at->second;
  while (text.foreseen.size() < text.right.size())
    text.foreseen.push_back(Guess(text, text.foreseen.size(), text.foreseen.empty() ? 0 : text.foreseen.back()));
  return {.tokens = text.foreseen, .from = static_cast<int64_t>(text.known->begin)};
}

float OracleDrafter::confidence() const {
  return known_.acceptance > 0 ? static_cast<float>(known_.acceptance) : kHope;
}

TokenId OracleDrafter::Guess(const Text& text, size_t at, TokenId before) {
  const TokenId right = at < text.right.size() ? text.known->tokens[at] : -1;
  if (right >= 0 && text.right[at]) return right;
  const bool repeats = RandomUniform(known_.seed, ++counter_) < known_.repeats;
  const TokenId token = repeats ? before
                                : static_cast<TokenId>(RandomBits(known_.seed, ++counter_) %
                                                       static_cast<uint64_t>(vocab_size_));
  return token == right ? static_cast<TokenId>((right + 1) % vocab_size_) : token;
}

void OracleDrafter::Replace(Draft& draft) {
  const Text& text = texts_.at(draft.session);
  draft.tokens.clear(), draft.confidence.clear();
  TokenId before = draft.next;
  for (int64_t i = 0; i < draft.most; ++i) {
    // tokens[0] stands behind the `begin` tokens of the session; the draft's first behind those and the next one.
    before = Guess(text, draft.session->tokens().size() + 1 - text.known->begin + static_cast<size_t>(i), before);
    draft.tokens.push_back(before);
    draft.confidence.push_back(confidence());
  }
}

}  // namespace dsv4
