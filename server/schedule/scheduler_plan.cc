// Which sequences run, how much of their prompts each step takes, and what is kept of them.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "server/schedule/sequence.h"

namespace dsv4::server {

namespace {

// Of a step's logits, where prompts need every row: with the last rows of other prompts what an engine has room for on
// a GPU.
constexpr int64_t kMaxAllRowsBytes = int64_t{64} << 20, kMaxAllRows = 112;
constexpr std::chrono::milliseconds kMaskWait{2};  // of a step, for grammars; then their sequences are left out
// for one sequence: files may be damaged, cuts may go before they are used
constexpr int kMaxReadsOfSequence = 4;
constexpr size_t kWorthWaiting = 64;  // tokens: what a cut must save other requests
// One request, and one of several tenants, leaves this part of the places in the batch and of the KV budget to others.
constexpr int64_t kOthersPart = 8;

int64_t LeftToOthers(int64_t all) { return all > 1 ? std::max<int64_t>(all / kOthersPart, 1) : 0; }

}  // namespace

int64_t Scheduler::BytesAfter(const Sequence& s, size_t more_tokens) const {
  const auto length = static_cast<double>(s.num_read() + more_tokens);
  const auto planned = options_.kv_fixed_bytes + static_cast<int64_t>(std::ceil(length * options_.kv_bytes_per_token));
  return std::max(planned, s.session == nullptr ? 0 : s.session->memory_bytes());
}

int64_t Scheduler::Growth(const Sequence& s, size_t more_tokens) const {
  return std::max<int64_t>(BytesAfter(s, more_tokens) - s.session->memory_bytes(), 0);
}

int64_t Scheduler::RunningBytes() const {
  int64_t bytes = 0;
  for (const SequencePtr& s : running_) {
    if (s->session != nullptr) bytes += s->session->own_bytes();
  }
  return bytes;
}

// Whether a sequence in the batch is about to make a cut from which `s` can go on much later than from what is there
// now: then the prompt that they share is read once. Where two prompts part, a cut is asked for.
bool Scheduler::ShouldWait(const Sequence& s, size_t cut) {
  if (!cache_.options().enabled || s.needs_prompt_rows()) return false;
  for (const SequencePtr& r : running_) {
    if (r->cuts.empty() || r->ended || r->job->paused || r->job->cancelled || r->job->tenant != s.job->tenant) continue;
    const std::span<const TokenId> ids = s.known_ids();
    const auto end = ids.begin() + static_cast<ptrdiff_t>(std::min(r->ids.size(), ids.size() - 1));
    const auto common = static_cast<size_t>(std::mismatch(ids.begin(), end, r->ids.begin()).first - ids.begin());
    const size_t worth = r->job == s.job ? 1 : kWorthWaiting;
    if (common < cut + worth) continue;
    auto next = std::upper_bound(r->cuts.begin(), r->cuts.end(), common);  // the first one that is too late
    const size_t best = next == r->cuts.begin() ? 0 : *std::prev(next);
    if (best > cut && best + worth > common) return true;
    if (common > r->num_read() && common < r->prompt_size) {
      r->cuts.insert(next, common);
      return true;
    }
    if (best >= cut + worth) return true;
  }
  return false;
}

// The cuts that `s` makes while it reads: where another conversation left this one's way, where the first user begins
// to speak (an agent that compacts its conversation keeps what stands before that), every so many tokens, and before
// the last token of the prompt. From there other replies to the same prompt start, and the next turn of a
// conversation whose reasoning the encoder leaves out ("<think>" is that last token).
void Scheduler::PlanCuts(Sequence& s, size_t common) {
  s.cuts.clear();
  if (!cache_.options().enabled || s.needs_prompt_rows()) return;
  const size_t begin = s.num_read(), end = s.prompt_size - 1, interval = cache_.options().interval;
  if (end <= begin) return;
  if (interval > 0) {
    for (size_t at = (begin / interval + 1) * interval; at + interval / 4 < end; at += interval) s.cuts.push_back(at);
  }
  if (common >= begin + kWorthWaiting && common < end) s.cuts.push_back(common);
  const auto prompt_end = s.ids.begin() + static_cast<ptrdiff_t>(s.prompt_size);
  const auto user = user_marker_ ? std::find(s.ids.begin(), prompt_end, *user_marker_) : prompt_end;
  const auto spoken = static_cast<size_t>(user - s.ids.begin());
  if (spoken >= begin + kWorthWaiting && spoken < end) s.cuts.push_back(spoken);
  s.cuts.push_back(end);
  std::sort(s.cuts.begin(), s.cuts.end());
  s.cuts.erase(std::unique(s.cuts.begin(), s.cuts.end()), s.cuts.end());
}

// Keeps the state of `s` where a cut was planned.
void Scheduler::TakeCut(Sequence& s) {
  if (s.cuts.empty() || s.cuts.front() != s.num_read()) return;
  s.cuts.erase(s.cuts.begin());
  const WorkSpan span(clock_, StepWork::kSnapshot);
  KeepSnapshot(s, s.num_read(), {});
}

void Scheduler::KeepReply(Sequence& s) {
  if (s.session == nullptr || s.num_read() == 0) return;
  const bool complete = s.end_reason == FinishReason::kStop || s.end_reason == FinishReason::kToolCalls;
  RenderedPrompt all;
  if (auto reply = complete && s.spec.text != nullptr ? s.writer.Rendered() : std::nullopt) {
    all = *s.spec.text;
    for (const TextRange& range : reply->content_ranges)
      all.content_ranges.push_back({all.text.size() + range.begin, all.text.size() + range.end});
    all.text += reply->text;
  }
  KeepSnapshot(s, s.ids.size(), std::move(all));
}

// The first `num_ids` ids of `s` are those that its text stands for; the session has read all or nearly all of them.
void Scheduler::KeepSnapshot(Sequence& s, size_t num_ids, RenderedPrompt rendered) {
  const std::string& tenant = s.job->tenant;
  if (!cache_.options().enabled || (rendered.text.empty() && cache_.Has(tenant, s.session->tokens()))) return;
  // As much as a snapshot may take: its fixed part and a page.
  const int64_t page = options_.kv_fixed_bytes + static_cast<int64_t>(std::ceil(256 * options_.kv_bytes_per_token));
  // Where running sequences leave no room for it, nothing else needs to go.
  if (RunningBytes() - (s.ended ? s.session->own_bytes() : 0) + page > options_.kv_budget_bytes) return;
  while (engine_.kv_bytes() + page > options_.kv_budget_bytes) {
    if (!Evict()) return;
  }
  auto snapshot = s.session->Snapshot();
  while (!snapshot.ok() && snapshot.status().code() == StatusCode::kResourceExhausted && Evict()) {
    snapshot = s.session->Snapshot();
  }
  if (!snapshot.ok()) return;
  // A client that biases tokens chooses how the reply is split.
  const bool models_own = num_ids <= s.prompt_size || s.params.sampling.logit_bias.empty();
  cache_.Put(tenant, std::move(*snapshot), std::span(s.ids).first(num_ids),
             {.of_ids = s.spec.text != nullptr && models_own, .rendered = std::move(rendered)});
}

void Scheduler::Planned::Add(const Scheduler& scheduler, const Sequence& s) {
  const int64_t shared = s.session->memory_bytes() - s.session->own_bytes();
  bytes += scheduler.BytesAfter(s, s.num_unread()) - shared;
  most_shared = std::max(most_shared, shared);
}

// A session for `s`, from the snapshot that was found; kept prompts give way.
Result<std::unique_ptr<Session>> Scheduler::Open(const PrefixCache::Found& found) {
  const auto open = [&] {
    return found.snapshot == nullptr ? engine_.NewSession() : engine_.NewSession(*found.snapshot);
  };
  auto session = open();
  while (!session.ok() && session.status().code() == StatusCode::kResourceExhausted && Evict()) session = open();
  return session;
}

Scheduler::Admission Scheduler::TryToAdmit(Sequence& s, bool leaves_room, Planned* planned) {
  const bool reuse = !s.needs_prompt_rows();  // log-probabilities of a prompt need all of its rows
  const PrefixCache::Known known = reuse ? cache_.Look(s.job->tenant, s.known_ids()) : PrefixCache::Known{};
  if (ShouldWait(s, known.cut)) return Admission::kLater;
  const auto shared = static_cast<int64_t>(static_cast<double>(known.cut) * options_.kv_bytes_per_token);
  const int64_t bytes = planned->bytes + std::max(planned->most_shared, shared) + BytesAfter(s, s.num_unread()) -
                        shared;
  const int64_t budget = options_.kv_budget_bytes - (leaves_room ? LeftToOthers(options_.kv_budget_bytes) : 0);
  // The next sequence of a request does not hold up other requests.
  if (!running_.empty() && bytes > budget) return leaves_room ? Admission::kLater : Admission::kNoRoom;
  if (known.on_disk && s.num_reads < kMaxReadsOfSequence) {
    const auto fetched = cache_.Fetch(s.job->tenant, s.known_ids());
    if (fetched == PrefixCache::Fetched::kBegun) ++s.num_reads;
    s.waits_for_disk = fetched != PrefixCache::Fetched::kHere;
    if (s.waits_for_disk) return Admission::kLater;
  }
  const PrefixCache::Found found = reuse ? cache_.Find(s.job->tenant, s.known_ids())
                                         : PrefixCache::Found{.snapshot = nullptr, .what = "prompt_logprobs"};
  if (s.ids.empty()) s.ids = *s.spec.prompt;
  if (const Status made = s.sampler == nullptr ? MakeSamplers(s) : Status(); !made.ok()) {
    End(s, FinishReason::kError, made);
    return Admission::kLater;
  }
  auto session = Open(found);
  if (!session.ok()) {
    if (session.status().code() == StatusCode::kResourceExhausted && !running_.empty()) return Admission::kNoRoom;
    End(s, FinishReason::kError, session.status());
    return Admission::kLater;
  }
  s.session = std::move(*session);
  // One that starts over computes its prompt as it did, unless the cache has lost rows since.
  s.computes = std::max(s.computes, s.prompt_end() - std::min(s.num_read(), s.prompt_end()));
  if (!s.was_admitted) {
    s.out.counts.cached = std::min(static_cast<int64_t>(s.num_read()), static_cast<int64_t>(s.prompt_size));
    metrics_.AddPrefixLookup(static_cast<int64_t>(s.prompt_size), s.out.counts.cached, found.what);
    s.was_admitted = true;
    s.admitted = clock_.Now();
  }
  PlanCuts(s, known.common);
  planned->Add(*this, s);
  return Admission::kAdmitted;
}

// Returns the waiting sequences in the order in which they may get a place. Tenants with the fewest places come first,
// among their requests those with the fewest places, then the order of arrival decides. So a request or a tenant of
// many sequences does not make others wait, and the first sequence of a request has its turn in order of arrival.
std::vector<Scheduler::Turn> Scheduler::InTurn() const {
  std::unordered_map<const Job*, int64_t> of_request;
  std::unordered_map<std::string_view, int64_t> of_tenant;
  for (const SequencePtr& s : running_) {
    ++of_request[s->job.get()];
    ++of_tenant[s->job->tenant];
  }
  std::vector<Turn> turns;
  turns.reserve(waiting_.size());
  for (const SequencePtr& s : waiting_) turns.push_back({s.get(), of_request[s->job.get()]++, 0});
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.places < b.places; });
  for (Turn& turn : turns) turn.tenants_places = of_tenant[turn.sequence->job->tenant]++;
  std::stable_sort(turns.begin(), turns.end(),
                   [](const Turn& a, const Turn& b) { return a.tenants_places < b.tenants_places; });
  return turns;
}

void Scheduler::Admit() {
  Planned planned;
  for (const SequencePtr& s : running_) planned.Add(*this, *s);
  for (const SequencePtr& s : waiting_) s->waits_for_disk = false;
  // As many as generate within the bound.
  admission_limit_ = options_.max_gap_s > 0 ? step_times_.Sequences(options_.max_gap_s, options_.max_running)
                                            : options_.max_running;
  const int64_t limit = admission_limit_, of_one = limit - LeftToOthers(limit);
  if (!waiting_.empty() && static_cast<int64_t>(running_.size()) < limit) {
    for (const auto& [s, places, tenants_places] : InTurn()) {
      if (static_cast<int64_t>(running_.size()) >= limit) break;
      if (places >= of_one || (options_.several_tenants && tenants_places >= of_one)) continue;
      const bool leaves_room = places > 0 || (options_.several_tenants && tenants_places > 0);
      const Admission admission = TryToAdmit(*s, leaves_room, &planned);
      if (admission == Admission::kNoRoom) break;
      if (admission == Admission::kAdmitted) MoveToBatch(s);
    }
  }
  Retire();
}

void Scheduler::MoveToBatch(Sequence* s) {
  const auto at = std::find_if(waiting_.begin(), waiting_.end(), [s](const SequencePtr& w) { return w.get() == s; });
  running_.push_back(std::move(*at));
  waiting_.erase(at);
  --num_waiting_;
  ++num_running_;
  if (s->ids.size() == s->prompt_size && !s->params.thinking) BeginContent(*s);
}

std::vector<Scheduler::Sequence*> Scheduler::PlanStep() {
  std::vector<Sequence*> prompts, batch = PlanTokens(&prompts);
  const auto generating = static_cast<int64_t>(batch.size());
  OrderPrompts(prompts);
  StepLimits limits{.rows = generating, .tokens = options_.prefill_chunk};
  step_.bound_s = StepBound(options_.max_gap_s, options_.target_ttft_s, LongestWait(prompts));
  if (generating > 0) {
    limits.seconds = step_.bound_s;
    limits.tokens = std::max(options_.prefill_chunk - generating, kMinPromptBudget);
  }
  AddPrompts(prompts, limits, &batch);
  tokens_follow_ = FirstTokensWouldWait();
  if (!tokens_follow_) return batch;
  // Prompts alone, which may take a whole chunk then.
  batch.clear();
  limits.tokens = generating > 0 ? std::max(options_.prefill_chunk, kMinPromptBudget) : options_.prefill_chunk;
  AddPrompts(prompts, limits, &batch);
  return batch;
}

// Whether prompts end in this step while others are still to be read after it.
bool Scheduler::FirstTokensWouldWait() const {
  bool ends = false, more = false;
  for (const SequencePtr& s : running_) {
    if (s->ended || s->job->paused || s->generating()) continue;
    if (s->num_unread() - s->take > 1) {
      more = true;
    } else if (s->spec.max_tokens > 0) {
      ends = true;
    }
  }
  return ends && more;
}

// One token of each sequence that generates; the others, whose prompts are not read yet, go to `prompts`.
std::vector<Scheduler::Sequence*> Scheduler::PlanTokens(std::vector<Sequence*>* prompts) {
  std::vector<Sequence*> batch;
  const auto until = Clock::now() + kMaskWait;
  // Asks to be woken where it does not.
  const auto knows_allowed = [&](Sequence& s) {
    if (KnowsAllowed(s, until)) return true;
    s.waits_for_mask = !s.ended && s.matcher->CallWhenReady();
    return !s.waits_for_mask && !s.ended && KnowsAllowed(s, until);
  };
  for (const SequencePtr& s : running_) {
    s->take = 0;
    s->waits_for_mask = false;
    if (s->job->paused || s->ended) continue;
    if (s->num_unread() == 1 && !knows_allowed(*s)) continue;
    if (s->generating()) {
      s->take = 1;
      batch.push_back(s.get());
    } else {
      prompts->push_back(s.get());
    }
  }
  return batch;
}

// Short prompts pass long ones, but waiting counts. A sequence that starts over waits since its last token.
void Scheduler::OrderPrompts(std::vector<Sequence*>& prompts) const {
  if (prompts.size() < 2) return;
  const auto now = clock_.Now();
  std::vector<std::pair<double, Sequence*>> order;
  order.reserve(prompts.size());
  for (Sequence* s : prompts) {
    const auto since = s->has_token ? s->last_token : s->job->submitted;
    order.emplace_back(PromptRank(static_cast<int64_t>(s->num_unread()), Seconds(now - since)), s);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::transform(order.begin(), order.end(), prompts.begin(), [](const auto& place) { return place.second; });
  OrderByRequest(prompts);
}

// Returns the longest time that a prompt without a first token has waited since its request arrived, in seconds.
double Scheduler::LongestWait(std::span<Sequence* const> prompts) const {
  const auto now = clock_.Now();
  double longest = 0;
  for (const Sequence* s : prompts) {
    if (!s->has_token) longest = std::max(longest, Seconds(now - s->job->submitted));
  }
  return longest;
}

// The first prompt of each request comes first, then all second ones, and so on; then the same by tenants. So a request
// or a tenant of many prompts does not hold up others.
void Scheduler::OrderByRequest(std::span<Sequence*> prompts) {
  if (prompts.size() < 2) return;
  std::unordered_map<const Job*, int64_t> of_request;
  std::unordered_map<std::string_view, int64_t> of_tenant;
  std::vector<std::pair<int64_t, Sequence*>> order;
  order.reserve(prompts.size());
  const auto sort = [&] {
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  };
  for (Sequence* s : prompts) order.emplace_back(of_request[s->job.get()]++, s);
  sort();
  for (auto& [place, s] : order) place = of_tenant[s->job->tenant]++;
  sort();
  std::transform(order.begin(), order.end(), prompts.begin(), [](const auto& place) { return place.second; });
}

// Adds the prompts of a step, which are in order.
void Scheduler::AddPrompts(std::span<Sequence*> prompts, const StepLimits& limits, std::vector<Sequence*>* batch) {
  const int64_t row_bytes = engine_.info().vocab_size * static_cast<int64_t>(sizeof(float));
  StepLimits all = limits;
  all.all_rows = std::clamp<int64_t>(kMaxAllRowsBytes / row_bytes, 1, kMaxAllRows);
  std::vector<PromptState> states;
  states.reserve(prompts.size());
  for (const Sequence* s : prompts) states.push_back(s->prompt_state());
  const PromptPlan plan = PlanPrompts(states, all, step_times_);
  step_.budget = plan.budget;
  const auto until = Clock::now() + kMaskWait;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Sequence& s = *prompts[i];
    int64_t take = plan.takes[i];
    s.take = 0;
    if (take == 0) continue;
    // Behind the last one a token is drawn.
    if (take > 1 && take == states[i].unread && !KnowsAllowed(s, until)) --take;
    if (s.ended) continue;
    s.take = static_cast<size_t>(take);
    batch->push_back(&s);
  }
}

// Keeps the step within the KV budget: kept cuts go first, then the sequence that came last starts over later.
void Scheduler::MakeRoom(std::vector<Sequence*>& batch) {
  const auto needed = [&] {
    int64_t bytes = engine_.kv_bytes();
    for (const SequencePtr& s : running_) bytes += s->session == nullptr ? 0 : Growth(*s, s->take);
    return bytes;
  };
  while (needed() > options_.kv_budget_bytes) {
    if (Evict()) continue;
    if (running_.size() > 1 && Preempt(running_.front().get())) {
      std::erase_if(batch, [](const Sequence* s) { return s->session == nullptr; });
      for (const SequencePtr& s : waiting_) std::erase(batch, s.get());
      continue;
    }
    if (batch.empty()) return;
    // One sequence alone does not fit any more.
    for (Sequence* s : batch) End(*s, FinishReason::kLength);
    batch.clear();
    return;
  }
}

bool Scheduler::Evict() {
  const WorkSpan span(clock_, StepWork::kEviction);
  return cache_.Evict();
}

// Takes the KV of the sequence that was admitted last; it is read again, prompt and output, when there is room.
bool Scheduler::Preempt(const Sequence* keep) {
  if (running_.empty() || running_.back().get() == keep) return false;
  StartOver(running_.back().get());
  metrics_.AddPreemption();
  return true;
}

void Scheduler::StartOver(const Sequence* s) {
  const auto at = std::find_if(running_.begin(), running_.end(), [s](const SequencePtr& r) { return r.get() == s; });
  waiting_.push_front(std::move(*at));  // before anything changes: it needs memory
  running_.erase(at);
  --num_running_;
  ++num_waiting_;
  Sequence& again = *waiting_.front();
  again.session.reset();
  again.cuts.clear();
  again.take = 0;
}

}  // namespace dsv4::server
