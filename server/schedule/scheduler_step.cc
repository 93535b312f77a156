// Steps of the engine: what is in them, and what follows from their times.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "server/schedule/logprobs.h"
#include "server/schedule/sequence.h"

namespace dsv4::server {

namespace {

constexpr int64_t kDecodeTokens = 32;  // of one call of Engine::Decode, which can be ended early
constexpr std::chrono::minutes kWarnAgain{1};
constexpr size_t kHostSteps = 256;  // steps whose host work is looked at together
constexpr double kLongHost = 0.02;  // seconds of host work in nine of ten steps
// Of a round of tokens, for grammars, while the device computes the next; then their sequences leave the loop. And of
// a round of drafts, for how much of them grammars allow.
constexpr std::chrono::milliseconds kRoundWait{5};

}  // namespace

Status Scheduler::RunItems(std::span<Sequence* const> batch) {
  std::vector<StepItem> items;
  for (Sequence* s : batch) {
    const std::span<const TokenId> tokens(s->ids.data() + s->num_read(), s->take);
    const bool all_rows = s->needs_prompt_rows();
    const bool last = s->take == s->num_unread();
    const LogitRows rows = all_rows ? LogitRows::kAll : last ? LogitRows::kLast : LogitRows::kNone;
    items.push_back({.session = s->session.get(),
                     .tokens = tokens,
                     .rows = rows,
                     .logits = rows == LogitRows::kNone ? nullptr : &s->logits,
                     .prompt_tokens = s->num_read() < s->prompt_end() ? static_cast<int64_t>(s->computes) : 0});
  }
  StepShape shape;
  for (const Sequence* s : batch) shape.AddPrompt(s->regime(), static_cast<int64_t>(s->take));
  step_begin_ns_ = NowNs();
  const StepWork before = clock_.Switch(StepWork::kPass);
  const Status status = engine_.Step(items);
  clock_.Switch(before);
  step_begin_ns_ = NowNs();
  if (status.ok()) AddPass(shape, clock_.last());
  return status;
}

// The model's passes of a step, or one of them.
void Scheduler::AddPass(const StepShape& pass, double seconds) {
  step_.guess_s += step_times_.Guess(pass);
  step_.shape.Add(pass);
  step_times_.Add(pass, seconds);
}

// Prompts and one token of each sequence that writes, in one step of the engine; in two where prompts end and others
// follow: the tokens behind them, so that a first one does not wait for the next prompts. On a GPU both cost the same
// (prompts and tokens are passes of their own).
void Scheduler::RunStep(std::vector<Sequence*>& batch) {
  step_metrics_.prompt_tokens = 0;
  step_.shape = {};  // a step that failed may have left some
  step_.guess_s = 0;
  if (tokens_follow_) {
    RunBatch(batch);
    if (!engine_.health().ok()) return;
    std::vector<Sequence*> prompts;
    batch = PlanTokens(&prompts);
    MakeRoom(batch);
  }
  if (!batch.empty()) RunBatch(batch);
  if (!step_.shape.empty()) TakeTime();
}

void Scheduler::RunBatch(std::vector<Sequence*>& batch) {
  Status status = RunItems(batch);
  // The machine has less memory than the budget says: free what can be freed and try again.
  while (status.code() == StatusCode::kResourceExhausted) {
    if (!Evict()) {
      if (running_.size() < 2 || !Preempt(running_.front().get())) break;
      std::erase(batch, waiting_.front().get());
      if (batch.empty()) return;
    }
    status = RunItems(batch);
  }
  if (status.ok()) return AfterStep(batch);
  if (!engine_.health().ok()) return;  // all end: OnDeviceFailure
  if (is_stopping()) return;           // all end: Run
  // No session has changed. Each alone, so that only the one at fault ends.
  for (Sequence* s : batch) {
    const Status alone = batch.size() == 1 ? status : RunItems({&s, 1});
    if (!engine_.health().ok()) return;
    if (alone.ok()) {
      AfterStep({&s, 1});
    } else {
      End(*s, FinishReason::kError, alone);
    }
  }
}

// Whether the next steps are known: one token of each sequence.
bool Scheduler::CanDecodeOn(std::span<Sequence* const> batch) const {
  if (batch.empty() || interrupted_) return false;
  int64_t bytes = engine_.kv_bytes();
  for (const SequencePtr& s : running_) {
    if (s->session != nullptr && s->take > 0) bytes += Growth(*s, kDecodeTokens + kMaxDraftTokens);
    if (s->take == 0 && !s->job->paused && !s->ended && !s->waits_for_mask) return false;
  }
  return bytes <= options_.kv_budget_bytes &&
         std::all_of(batch.begin(), batch.end(), [](const Sequence* s) { return s->generating(); });
}

void Scheduler::DecodeOn(std::span<Sequence* const> batch) {
  std::vector<DecodeItem> items;
  std::optional<Clock::time_point> tokens_until, drafts_until;  // of a round
  const auto until = [](std::optional<Clock::time_point>& of_round) {
    if (!of_round) of_round = Clock::now() + kRoundWait;
    return *of_round;
  };
  for (Sequence* s : batch) {
    DecodeItem item{.session = s->session.get(),
                    .sampler = &SamplerOf(*s),
                    .first = s->ids.back(),
                    .speculate = s->params.speculate};
    item.on_verification = [s](const Verification& v) { s->out.counts.proposed += std::ssize(v.proposed); };
    if (IsHeld(*s)) {
      item.allowed = [this, s] { return Allowed(*s); };
      item.limit_draft = [&, s](std::span<const TokenId> drafted) {
        return MayFollow(*s, drafted, until(drafts_until));
      };
    }
    item.max_tokens = std::min(kDecodeTokens, s->spec.max_tokens - s->out.counts.completion);
    item.stop_ids = s->params.stop_ids;
    if (!s->params.ignore_eos) {
      const auto& eos = engine_.info().eos_token_ids;
      item.stop_ids.insert(item.stop_ids.end(), eos.begin(), eos.end());
    }
    items.push_back(std::move(item));
    if (s->num_read() < s->prompt_size) ++step_metrics_.prompt_tokens;  // the last one of a prompt
  }
  bool over = false;
  size_t last = 0;
  step_begin_ns_ = NowNs();
  const StepWork before = clock_.Switch(StepWork::kPass);
  const Status status = engine_.Decode(items, [&](size_t i, const SampledToken& token) {
    const WorkSpan span(clock_, StepWork::kTokens);
    const double pass_s = clock_.last();
    drafts_until.reset();
    if (step_metrics_.generated_tokens > 0 && !token.drafted && i <= last) {  // the next round of tokens has begun
      AfterRound(pass_s);
      step_begin_ns_ = NowNs();
      tokens_until.reset();
    }
    if (step_metrics_.generated_tokens == 0) round_pass_s_ = pass_s;
    last = i;
    Sequence& s = *batch[i];
    const size_t length = s.ids.size();
    const bool reasoned = s.writer.in_reasoning();
    if (token.drafted) ++s.out.counts.drafted, ++step_metrics_.drafted_tokens;
    AcceptToken(s, token);
    // A reply is kept and its end delivered after this call.
    over = over || interrupted_ || s.ended || (s.job->deadline && clock_.Now() > *s.job->deadline);
    const bool as_planned = s.ids.size() == length + 1 && (items[i].allowed || !IsHeld(s)) &&
                            (s.reasoning_sampler == nullptr || s.writer.in_reasoning() == reasoned);
    return !over && !s.ended && as_planned && KnowsAllowed(s, until(tokens_until));
  });
  clock_.Switch(before);
  step_begin_ns_ = NowNs();
  AfterRound(0);
  if (status.ok() || !engine_.health().ok() || is_stopping()) return;
  one_step_ = true;
  for (Sequence* s : batch) {
    if (s->ended) continue;
    // One that has read all of its tokens lost the row behind them: it starts over. One whose tokens do not follow from
    // what was told is lost.
    const std::vector<TokenId>& read = s->session->tokens();
    if (read == s->ids) {
      StartOver(s);
    } else if (read.size() > s->ids.size() || !std::equal(read.begin(), read.end(), s->ids.begin())) {
      End(*s, FinishReason::kError, status);
    }
  }
}

// A round of Decode is over. `next_pass_s` of the time so far are the pass of the next one.
void Scheduler::AfterRound(double next_pass_s) {
  if (step_metrics_.generated_tokens > 0) {
    step_metrics_.drafts = engine_.draft_counts();
    AddPass({.rows = step_metrics_.generated_tokens - step_metrics_.drafted_tokens}, round_pass_s_);
    TakeTime(next_pass_s);
  }
  Deliver();
}

void Scheduler::AfterStep(std::span<Sequence* const> batch) {
  for (Sequence* s : batch) {
    const size_t read_before = s->num_read() - s->take;
    const bool generated = s->take == 1 && read_before >= s->prompt_size;
    if (!generated) step_metrics_.prompt_tokens += static_cast<int64_t>(s->take);
    if (s->needs_prompt_rows()) {
      TakePromptRows(*s, read_before, s->take);
      // The rows of a step have one room together: who has had its turn keeps none but the last one.
      const auto vocab = static_cast<ptrdiff_t>(engine_.info().vocab_size);
      const auto kept = s->num_unread() == 0 ? s->logits.end() - vocab : s->logits.end();
      s->logits = std::vector<float>(kept, s->logits.end());
    }
    TakeCut(*s);
    if (s->num_unread() != 0) continue;
    const WorkSpan span(clock_, StepWork::kTokens);
    ChooseToken(*s);
  }
}

// A step is over: its time, with all that was done since the one before it. The last `next_pass_s` of it are the next
// step's.
void Scheduler::TakeTime(double next_pass_s) {
  const WorkSeconds seconds = clock_.Take(next_pass_s);
  const double pass_s = seconds[0], host_s = HostSeconds(seconds);
  const bool prompts = step_metrics_.prompt_tokens > 0;
  if (!prompts) step_metrics_.decode_s = pass_s + host_s;
  step_metrics_.work_s = seconds;
  if (options_.max_gap_s > 0) {
    for (const double gap : step_metrics_.token_gaps_s)
      step_metrics_.gaps_over_bound += gap > options_.max_gap_s ? 1 : 0;
    WarnOfLongSteps(pass_s);
  }
  WarnOfHostWork(seconds);
  step_.end_s = Seconds(clock_.Now() - begin_);
  step_.seconds = seconds;
  step_.distance = step_times_.Distance(step_.shape);
  step_.limit = admission_limit_;
  trace_.Add(step_);
  metrics_.AddStep(step_metrics_);
  step_metrics_ = {};
  // The plan holds for all rounds of a call of Decode.
  step_ = {.budget = step_.budget, .bound_s = step_.bound_s};
}

// What no choice of prompts can change.
void Scheduler::WarnOfLongSteps(double pass_s) {
  const StepShape& step = step_.shape;
  if (step.rows == 0 || step_metrics_.prompt_tokens > 0 || clock_.Now() <= next_warning_) return;
  if (step_times_.Fits(step, options_.max_gap_s) || !options_.on_warning) return;
  next_warning_ = clock_.Now() + kWarnAgain;
  options_.on_warning("a step of " + std::to_string(step.rows) + " sequences without prompts takes " +
                      std::to_string(static_cast<int64_t>(1000 * pass_s)) + " ms, longer than --max-gap " +
                      std::to_string(static_cast<int64_t>(1000 * options_.max_gap_s)) +
                      " ms: lower --max-concurrent or raise --max-gap");
}

// Work of the host lengthens gaps, and no bound of the passes shortens it. The log gets one line.
void Scheduler::WarnOfHostWork(const WorkSeconds& seconds) {
  if (host_warned_ || !options_.on_warning) return;
  for (size_t i = 1; i < seconds.size(); ++i) host_sums_[i] += seconds[i];
  host_seconds_.push_back(HostSeconds(seconds));
  if (host_seconds_.size() < kHostSteps) return;
  const auto most = host_seconds_.begin() + kHostSteps * 9 / 10;
  std::nth_element(host_seconds_.begin(), most, host_seconds_.end());
  if (*most > kLongHost) {
    const auto largest = std::max_element(host_sums_.begin() + 1, host_sums_.end()) - host_sums_.begin();
    host_warned_ = true;
    options_.on_warning("in one of ten steps the host works for " + std::to_string(static_cast<int64_t>(1000 * *most)) +
                        " ms or more between the model's passes, mostly for " +
                        kStepWorkNames[static_cast<size_t>(largest)] +
                        " (dsv4_host_seconds_total): gaps between tokens grow by that, whatever --max-gap is");
  }
  host_seconds_.clear();
  host_sums_ = {};
}

void Scheduler::TakePromptRows(Sequence& s, size_t begin, size_t count) {
  const auto vocab = static_cast<size_t>(engine_.info().vocab_size);
  for (size_t i = begin; i < begin + count && i < s.prompt_size; ++i) {
    if (i < s.prompt_rows_done) continue;  // read again after a preemption
    // Row i - 1 says how likely token i was.
    const std::span<const float> row = i == begin
                                           ? std::span<const float>(s.prompt_row)
                                           : std::span<const float>(s.logits.data() + (i - 1 - begin) * vocab, vocab);
    OutputToken token{.id = s.ids[i]};
    if (i > 0) token = TokenLogprobs(row, s.ids[i], s.params.prompt_logprobs);
    s.out.prompt.push_back(std::move(token));
    s.prompt_rows_done = i + 1;
  }
  s.prompt_row.assign(s.logits.end() - static_cast<ptrdiff_t>(vocab), s.logits.end());
  if (s.prompt_rows_done == s.prompt_size) s.prompt_row = {};
}

}  // namespace dsv4::server
