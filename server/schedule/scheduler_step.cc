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
  step_begin_ns_ = NowNs();
  const Status status = engine_.Step(items);
  step_begin_ns_ = NowNs();
  return status;
}

// Prompts and one token of each sequence that writes, in one step of the engine; in two where prompts end and others
// follow: the tokens behind them, so that a first one does not wait for the next prompts. On a GPU both cost the same
// (prompts and tokens are passes of their own).
void Scheduler::RunStep(std::vector<Sequence*>& batch) {
  step_generating_ = step_metrics_.prompt_tokens = 0;
  if (tokens_follow_) {
    RunBatch(batch);
    if (!engine_.health().ok()) return;
    std::vector<Sequence*> prompts;
    batch = PlanTokens(&prompts);
    MakeRoom(batch);
  }
  if (!batch.empty()) RunBatch(batch);
  if (step_generating_ + step_metrics_.prompt_tokens > 0) TakeTime(step_generating_, step_metrics_.prompt_tokens);
}

void Scheduler::RunBatch(std::vector<Sequence*>& batch) {
  Status status = RunItems(batch);
  // The machine has less memory than the budget says: free what can be freed and try again.
  while (status.code() == StatusCode::kResourceExhausted) {
    if (!cache_.Evict()) {
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
  const auto end_step = [&] {
    AfterGeneratingStep();
    Deliver();
  };
  step_begin_ns_ = NowNs();
  const Status status = engine_.Decode(items, [&](size_t i, const SampledToken& token) {
    drafts_until.reset();
    if (step_metrics_.generated_tokens > 0 && !token.drafted && i <= last) {  // the next round of tokens has begun
      end_step();
      step_begin_ns_ = NowNs();
      tokens_until.reset();
    }
    last = i;
    Sequence& s = *batch[i];
    const size_t length = s.ids.size();
    const bool reasoned = s.writer.in_reasoning();
    if (token.drafted) ++s.out.counts.drafted, ++step_metrics_.drafted_tokens;
    AcceptToken(s, token);
    // A place that became free is for those that wait.
    over = over || interrupted_ || (s.ended && !waiting_.empty()) ||
           (s.job->deadline && Clock::now() > *s.job->deadline);
    const bool as_planned = s.ids.size() == length + 1 && (items[i].allowed || !IsHeld(s)) &&
                            (s.reasoning_sampler == nullptr || s.writer.in_reasoning() == reasoned);
    return !over && !s.ended && as_planned && KnowsAllowed(s, until(tokens_until));
  });
  step_begin_ns_ = NowNs();
  end_step();
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

void Scheduler::AfterGeneratingStep() {
  if (step_metrics_.generated_tokens == 0) return;
  step_metrics_.drafts = engine_.draft_counts();
  TakeTime(step_metrics_.generated_tokens - step_metrics_.drafted_tokens, 0);
}

void Scheduler::AfterStep(std::span<Sequence* const> batch) {
  for (Sequence* s : batch) {
    const size_t read_before = s->num_read() - s->take;
    const bool generated = s->take == 1 && read_before >= s->prompt_size;
    (generated ? step_generating_ : step_metrics_.prompt_tokens) += static_cast<int64_t>(s->take);
    if (s->needs_prompt_rows()) {
      TakePromptRows(*s, read_before, s->take);
      // The rows of a step have one room together: who has had its turn keeps none but the last one.
      const auto vocab = static_cast<ptrdiff_t>(engine_.info().vocab_size);
      const auto kept = s->num_unread() == 0 ? s->logits.end() - vocab : s->logits.end();
      s->logits = std::vector<float>(kept, s->logits.end());
    }
    TakeCut(*s);
    if (s->num_unread() == 0) ChooseToken(*s);
  }
}

// A step is over: its time, with all that was done since the one before it.
void Scheduler::TakeTime(int64_t generating, int64_t prompt_tokens) {
  const auto now = Clock::now();
  const double seconds = Seconds(now - step_begin_);
  step_begin_ = now;
  step_times_.Add(generating, prompt_tokens, seconds);
  if (prompt_tokens == 0) step_metrics_.decode_s = seconds;
  if (options_.max_gap_s > 0) {
    for (const double gap : step_metrics_.token_gaps_s)
      step_metrics_.gaps_over_bound += gap > options_.max_gap_s ? 1 : 0;
    // What no choice of prompts can change.
    if (prompt_tokens == 0 && step_times_.Expect(generating, 0) > options_.max_gap_s && now > next_warning_) {
      next_warning_ = now + kWarnAgain;
      if (options_.on_warning) {
        options_.on_warning("a step of " + std::to_string(generating) + " sequences without prompts takes " +
                            std::to_string(static_cast<int64_t>(1000 * seconds)) + " ms, longer than --max-gap " +
                            std::to_string(static_cast<int64_t>(1000 * options_.max_gap_s)) +
                            " ms: lower --max-concurrent or raise --max-gap");
      }
    }
  }
  metrics_.AddStep(step_metrics_);
  step_metrics_ = {};
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
