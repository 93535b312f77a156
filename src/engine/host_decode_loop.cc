#include "engine/host_decode_loop.h"

#include <algorithm>

#include "base/stopwatch.h"
#include "engine/engine_impl.h"
#include "engine/sampler_impl.h"

namespace dsv4 {

HostDecodeLoop::HostDecodeLoop(EngineImpl& engine, Drafting& drafting, std::span<const DecodeItem> items,
                               const TokenFn& on_token)
    : engine_(engine), drafting_(drafting), items_(items), on_token_(on_token) {
  for (size_t i = 0; i < items.size(); ++i) live_.push_back({.item = i, .next = items[i].first});
}

Status HostDecodeLoop::Run() {
  while (!live_.empty()) {
    DSV4_RETURN_IF_ERROR(Propose());
    DSV4_RETURN_IF_ERROR(StepWithDrafts());
    for (size_t i = 0; i < live_.size(); ++i) DSV4_RETURN_IF_ERROR(Draw(live_[i], drafts_[i]));
    std::erase_if(live_, [](const Live& l) { return l.next < 0; });
  }
  return {};
}

// The last draw is never appended, and no token lies behind the context's end.
int64_t HostDecodeLoop::MostDrafts(const Live& live) const {
  const DecodeItem& item = items_[live.item];
  if (!item.speculate || item.session == nullptr) return 0;
  const auto length = static_cast<int64_t>(item.session->tokens().size());
  const int64_t most = std::min({drafting_.max_tokens, item.max_tokens - live.drawn - 1,
                                 engine_.info().max_context - length - 1});
  return std::max<int64_t>(most, 0);
}

Status HostDecodeLoop::Propose() {
  drafts_.resize(live_.size());
  bool any = false;
  for (size_t i = 0; i < live_.size(); ++i) {
    Draft& d = drafts_[i];
    d.tokens.clear(), d.confidence.clear();
    d.next = live_[i].next;
    d.most = drafting_.drafter != nullptr ? MostDrafts(live_[i]) : 0;
    d.session = dynamic_cast<const SessionImpl*>(items_[live_[i].item].session);
    d.sampler = dynamic_cast<const SamplerImpl*>(items_[live_[i].item].sampler);
    if (d.session == nullptr) d.most = 0;
    any = any || d.most > 0;
  }
  if (!any) return {};
  const Stopwatch drafting;
  DSV4_RETURN_IF_ERROR(drafting_.drafter->Propose(drafts_));
  drafting_.policy.Cut(drafts_, engine_.runner().RowsAlike(static_cast<int64_t>(live_.size())));
  drafting_.counts.draft_s += drafting.Seconds();
  return {};
}

Status HostDecodeLoop::StepWithDrafts() {
  Status status = StepOnce();
  const auto has_tokens = [](const Draft& d) { return !d.tokens.empty(); };
  // Drafts may be what there is no memory for.
  if (status.code() == StatusCode::kResourceExhausted && std::any_of(drafts_.begin(), drafts_.end(), has_tokens)) {
    for (Draft& d : drafts_) d.Shorten(0);
    status = StepOnce();
  }
  return status;
}

Status HostDecodeLoop::StepOnce() {
  step_.clear();
  int64_t rows = 0;
  for (size_t i = 0; i < live_.size(); ++i) {
    Live& l = live_[i];
    l.tokens.assign(1, l.next);
    l.tokens.insert(l.tokens.end(), drafts_[i].tokens.begin(), drafts_[i].tokens.end());
    rows += static_cast<int64_t>(l.tokens.size());
    step_.push_back(
        {.session = items_[l.item].session, .tokens = l.tokens, .rows = LogitRows::kAll, .logits = &l.logits});
  }
  const Stopwatch stepping;
  DSV4_RETURN_IF_ERROR(engine_.Step(step_));
  const double seconds = stepping.Seconds();
  drafting_.policy.AddStep(rows, seconds);
  ++drafting_.counts.steps;
  if (rows > static_cast<int64_t>(live_.size())) drafting_.counts.verify_s += seconds;
  // Until it is drawn, a drafted token is none.
  for (size_t i = 0; i < live_.size(); ++i)
    static_cast<SessionImpl*>(step_[i].session)->TakeBack(drafts_[i].tokens.size());
  return {};
}

Status HostDecodeLoop::Draw(Live& l, Draft& draft) {
  const DecodeItem& item = items_[l.item];
  auto& session = *static_cast<SessionImpl*>(item.session);
  const auto vocab = static_cast<size_t>(engine_.info().vocab_size);
  const auto position = static_cast<int64_t>(session.tokens().size()) - 2;
  const size_t rows = draft.tokens.size() + 1;
  size_t row = 0;
  for (;; ++row) {
    const std::span<const uint32_t> allowed = item.allowed ? item.allowed() : std::span<const uint32_t>();
    DSV4_ASSIGN_OR_RETURN(SampledToken token,
                          item.sampler->Sample(std::span(l.logits).subspan(row * vocab, vocab), allowed));
    token.drafted = row > 0;
    l.next = token.id;
    const bool stop = std::find(item.stop_ids.begin(), item.stop_ids.end(), token.id) != item.stop_ids.end();
    if (!on_token_(l.item, token) || stop || ++l.drawn >= item.max_tokens) l.next = -1;
    if (row + 1 == rows || token.id != draft.tokens[row]) break;
    if (l.next < 0) {
      ++row;  // it was drafted rightly, though nothing follows
      break;
    }
    session.Commit({&l.next, 1});
  }
  if (rows > 1) Count(draft, position, static_cast<int64_t>(row), item);
  return {};
}

void HostDecodeLoop::Count(const Draft& draft, int64_t position, int64_t accepted, const DecodeItem& item) {
  DraftCounts& c = drafting_.counts;
  ++c.verifications;
  c.drafted += static_cast<int64_t>(draft.tokens.size());
  c.accepted += accepted;
  for (size_t i = 0; i < draft.tokens.size(); ++i) {
    ++c.drafted_at[i];
    if (static_cast<int64_t>(i) < accepted) ++c.accepted_at[i];
  }
  drafting_.drafter->Observe(draft, accepted);
  if (item.on_verification)
    item.on_verification({.position = position, .proposed = draft.tokens, .accepted = accepted});
}

}  // namespace dsv4
