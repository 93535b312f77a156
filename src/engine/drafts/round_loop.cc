#include "engine/drafts/round_loop.h"

#include <algorithm>
#include <utility>

#include "base/stopwatch.h"

namespace dsv4 {

RoundLoop::RoundLoop(const ModelInfo& info, Drafting& drafting, std::span<const DecodeItem> items,
                     const TokenFn& on_token, std::vector<LiveItem>& live, RoundStep& step, MaxRowsFn max_rows)
    : info_(info),
      drafting_(drafting),
      items_(items),
      on_token_(on_token),
      live_(live),
      step_(step),
      max_rows_(std::move(max_rows)) {}

Status RoundLoop::Run() {
  step_.Forget();
  DraftCounts& counts = drafting_.counts;
  const Stopwatch decoding;
  const double before = counts.draft_s + counts.verify_s;
  Status status;
  while (!live_.empty() && status.ok()) {
    status = RunNext();
    std::erase_if(live_, [](const LiveItem& l) { return l.ended; });
  }
  counts.rest_s += std::max(decoding.Seconds() - (counts.draft_s + counts.verify_s - before), 0.0);
  return status;
}

Status RoundLoop::RunNext() {
  if (Ask()) {
    if (const int64_t drafts = DraftsAhead(); drafts > 0) {
      const Status status = RunAhead(drafts);
      if (status.code() != StatusCode::kResourceExhausted) return status;
    }
    DSV4_RETURN_IF_ERROR(Propose());
  }
  return plain_ != nullptr && !HasDrafts() ? RunPlain() : RunRound();
}

void RoundLoop::BeginDrafts() {
  foreseen_ = false;
  drafts_.resize(live_.size());
  for (size_t i = 0; i < live_.size(); ++i) {
    Draft& d = drafts_[i];
    d.tokens.clear(), d.confidence.clear();
    d.next = live_[i].next;
    d.most = drafting_.drafter != nullptr ? MostDrafts(live_[i]) : 0;
    d.longest = drafting_.max_tokens;
    d.session = live_[i].session;
    d.sampler = live_[i].sampler;
  }
}

bool RoundLoop::Ask() {
  BeginDrafts();
  draft_seconds_ = 0;
  const auto sequences = static_cast<int64_t>(live_.size());
  if (!WantsDrafts() || !drafting_.policy.Wants(sequences)) return false;
  foreseen_ = Foresee();
  const auto is_wanted = [](const Draft& d) { return d.most > 0; };
  if (making() == Making::kAtOnce || std::any_of(drafts_.begin(), drafts_.end(), is_wanted)) return true;
  // Charges the trial as if the drafts had been made. Otherwise a trial without drafts would never end.
  drafting_.policy.AddGain(sequences, 0, drafting_.policy.Drafting(making(), 1));
  return false;
}

bool RoundLoop::Foresee() {
  // What is made at once is better cut once it is made: its number is foreseen for rounds that need no host alone.
  const bool needs_host = ahead_ == nullptr || drafting_.policy.has_threshold();
  if (making() == Making::kAtOnce && needs_host) return false;
  std::vector<float> confidence;
  if (!drafting_.drafter->Foresees(drafting_.max_tokens, &confidence)) return false;
  for (Draft& d : drafts_) d.confidence.assign(confidence.begin(), confidence.begin() + d.most);
  drafting_.policy.Cut(drafts_, max_rows(), making());
  int64_t longest = 0;
  for (Draft& d : drafts_) {
    d.most = std::ssize(d.confidence);
    longest = std::max(longest, d.most);
    d.confidence.clear();
  }
  for (Draft& d : drafts_) d.longest = longest;
  return true;
}

int64_t RoundLoop::DraftsAhead() const {
  const int64_t most = drafts_.front().most;
  const bool alike = std::all_of(drafts_.begin(), drafts_.end(), [most](const Draft& d) { return d.most == most; });
  return foreseen_ && alike && ahead_ != nullptr && ahead_->Takes(most) ? most : 0;
}

Status RoundLoop::RunAhead(int64_t drafts) {
  step_.Forget();
  const auto sequences = static_cast<int64_t>(live_.size());
  DraftCounts& counts = drafting_.counts;
  DraftPolicy& policy = drafting_.policy;
  int64_t accepted_before = counts.accepted;
  const auto take = [&](size_t i, const Verification& verified, int64_t gained) {
    Draft& draft = drafts_[i];
    draft.tokens.assign(verified.proposed.begin(), verified.proposed.end());
    draft.confidence.clear();
    drafting_.drafter->Foresees(drafts, &draft.confidence);
    Count(draft, /*foreseen=*/true, verified, gained, items_[live_[i].item]);
  };
  const auto ends = [&](double seconds, bool was_first) {
    was_round_ = true;
    ++counts.steps;
    const double drafting = std::min(policy.Drafting(making(), drafts), seconds / 2);
    counts.draft_s += drafting;
    counts.verify_s += seconds - drafting;
    if (!was_first) {
      policy.AddStep(sequences * (drafts + 1), sequences, seconds - drafting);
      policy.AddGain(sequences, counts.accepted - accepted_before, seconds - policy.Expect(sequences, sequences));
    }
    accepted_before = counts.accepted;
    return !Ask() || DraftsAhead() != drafts;
  };
  return ahead_->Run(drafts, *drafting_.drafter, take, ends);
}

bool RoundLoop::WantsDrafts() const {
  return drafting_.drafter != nullptr &&
         std::any_of(live_.begin(), live_.end(), [this](const LiveItem& l) { return MostDrafts(l) > 0; });
}

bool RoundLoop::HasDrafts() const {
  return std::any_of(drafts_.begin(), drafts_.end(), [](const Draft& d) { return !d.tokens.empty(); });
}

// The last draw is never appended, and no token lies behind the context's end.
int64_t RoundLoop::MostDrafts(const LiveItem& live) const {
  const DecodeItem& item = items_[live.item];
  if (!item.speculate || live.session == nullptr || live.ended) return 0;
  if (!drafting_.drafter->is_free() && !live.session->can_draft()) return 0;
  const auto length = static_cast<int64_t>(live.session->tokens().size());
  const int64_t most = std::min(
      {drafting_.max_tokens, item.max_tokens - live.drawn - 1, info_.max_context - length - 1});
  return std::max<int64_t>(most, 0);
}

Status RoundLoop::Propose() {
  if (making() == Making::kAtOnce) BeginDrafts();
  const auto sequences = static_cast<int64_t>(live_.size());
  const int64_t longest = drafts_.front().longest;
  const Stopwatch drafting;
  DSV4_RETURN_IF_ERROR(drafting_.drafter->Propose(drafts_));
  draft_seconds_ = drafting.Seconds();
  drafting_.counts.draft_s += draft_seconds_;
  const bool is_free = drafting_.drafter->is_free();
  if (!is_free && !drafting_.drafter->was_first()) drafting_.policy.AddDrafting(making(), longest, draft_seconds_);
  if (!foreseen_) drafting_.policy.Cut(drafts_, max_rows());
  for (size_t i = 0; i < live_.size(); ++i) {
    const DecodeItem& item = items_[live_[i].item];
    if (item.limit_draft && !drafts_[i].tokens.empty()) drafts_[i].Shorten(item.limit_draft(drafts_[i].tokens));
  }
  if (!HasDrafts() && !is_free) drafting_.policy.AddGain(sequences, 0, draft_seconds_);
  return {};
}

// Whether a step should keep what a draft module reads. Where drafts rest it need not: new sequences bring all that
// drafting begins with, others make up for a window.
bool RoundLoop::KeepsDrafts() const {
  if (drafting_.drafter == nullptr || drafting_.drafter->is_free()) return true;
  if (drafting_.policy.Rests(static_cast<int64_t>(live_.size()))) return false;
  return std::any_of(live_.begin(), live_.end(), [this](const LiveItem& l) { return items_[l.item].speculate; });
}

// Until a draft is worth while; one more step follows then, behind which drafts are made anew.
Status RoundLoop::RunPlain() {
  step_.Forget();
  const auto sequences = static_cast<int64_t>(live_.size());
  const bool keeps = KeepsDrafts();
  plain_->KeepDrafts(keeps);
  int64_t seen = 0;
  Stopwatch stepping;
  return plain_->Run([&] {
    ++drafting_.counts.steps;
    // The first one waits for what sets it up, which is a part of what drafts cost.
    if (++seen > 1) drafting_.policy.AddStep(sequences, sequences, stepping.Seconds());
    if (seen == 1 && was_round_) {
      const double plain = drafting_.policy.Expect(sequences, sequences);
      drafting_.policy.AddGain(sequences, 0, std::clamp(stepping.Seconds() - plain, 0.0, plain));
    }
    was_round_ = false;
    stepping = Stopwatch();
    if (std::any_of(live_.begin(), live_.end(), [](const LiveItem& l) { return l.ended; })) return true;
    if (!keeps && KeepsDrafts()) return true;
    if (!WantsDrafts() || !Ask()) return false;
    return !drafting_.drafter->is_free() || (Propose().ok() && HasDrafts());
  });
}

Status RoundLoop::RunRound() {
  Status status = StepOnce();
  // Drafts may be what there is no memory for.
  if (status.code() == StatusCode::kResourceExhausted && HasDrafts()) {
    for (Draft& d : drafts_) d.Shorten(0);
    status = StepOnce();
  }
  DSV4_RETURN_IF_ERROR(status);
  const int64_t before = drafting_.counts.accepted;
  for (size_t i = 0; i < live_.size(); ++i) DSV4_RETURN_IF_ERROR(Draw(i));
  const auto sequences = static_cast<int64_t>(live_.size());
  was_round_ = HasDrafts();
  if (HasDrafts() && !step_.was_first() && !drafting_.drafter->was_first()) {
    drafting_.policy.AddGain(sequences, drafting_.counts.accepted - before,
                             draft_seconds_ + step_seconds_ - drafting_.policy.Expect(sequences, sequences));
  }
  return {};
}

Status RoundLoop::StepOnce() {
  tokens_.resize(std::max(tokens_.size(), live_.size()));
  sequences_.clear();
  int64_t rows = 0;
  for (size_t i = 0; i < live_.size(); ++i) {
    std::vector<TokenId>& tokens = tokens_[i];
    tokens.assign(1, live_[i].next);
    tokens.insert(tokens.end(), drafts_[i].tokens.begin(), drafts_[i].tokens.end());
    rows += static_cast<int64_t>(tokens.size());
    sequences_.push_back({.live = &live_[i], .item = &items_[live_[i].item], .tokens = tokens});
  }
  step_.KeepDrafts(HasDrafts() || KeepsDrafts());
  const Stopwatch stepping;
  DSV4_RETURN_IF_ERROR(step_.Run(sequences_));
  step_seconds_ = stepping.Seconds();
  const auto sequences = static_cast<int64_t>(live_.size());
  if (!step_.was_first()) drafting_.policy.AddStep(rows, sequences, step_seconds_);
  ++drafting_.counts.steps;
  if (rows > sequences) drafting_.counts.verify_s += step_seconds_;
  // Until it is drawn, a drafted token is none.
  for (size_t i = 0; i < live_.size(); ++i) live_[i].session->TakeBack(drafts_[i].tokens.size());
  return {};
}

Status RoundLoop::Draw(size_t i) {
  LiveItem& l = live_[i];
  const Draft& draft = drafts_[i];
  const DecodeItem& item = items_[l.item];
  const auto position = static_cast<int64_t>(l.session->tokens().size()) - 2;
  const size_t rows = draft.tokens.size() + 1;
  Verification verified{.position = position, .proposed = draft.tokens};
  int64_t gained = 0;
  for (size_t row = 0;; ++row) {
    DSV4_ASSIGN_OR_RETURN(SampledToken token, step_.Draw(i, row));
    token.drafted = row > 0;
    gained = static_cast<int64_t>(row);
    Emit(l, item, token, on_token_);
    if (row + 1 == rows || token.id != draft.tokens[row]) break;
    verified.accepted = static_cast<int64_t>(row) + 1;
    if (l.ended) break;
    l.session->Commit({&l.next, 1});
  }
  if (rows > 1) Count(draft, foreseen_, verified, gained, item);
  return {};
}

void RoundLoop::Count(const Draft& draft, bool foreseen, const Verification& verified, int64_t gained,
                      const DecodeItem& item) {
  DraftCounts& c = drafting_.counts;
  ++c.verifications;
  c.drafted += static_cast<int64_t>(draft.tokens.size());
  c.accepted += gained;
  for (size_t i = 0; i < draft.tokens.size(); ++i) {
    ++c.drafted_at[i];
    if (static_cast<int64_t>(i) < gained) ++c.accepted_at[i];
  }
  drafting_.policy.Observe(draft, verified.accepted, foreseen);
  drafting_.drafter->Observe(draft, verified.accepted);
  if (item.on_verification) item.on_verification(verified);
}

}  // namespace dsv4
