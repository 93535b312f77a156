#include "scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "logprobs.h"
#include "sequence.h"

namespace dsv4::server {

namespace {

constexpr std::chrono::seconds kSaveTime{60};  // for writing the prefix cache to disk at the end
constexpr int64_t kDecodeTokens = 32;  // of one call of Engine::Decode, which can be ended early
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kCallBegin = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"";

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

int64_t NowNs() { return Clock::now().time_since_epoch().count(); }

bool HasPenalties(const SamplingParams& s) {
  return s.presence_penalty != 0 || s.frequency_penalty != 0 || s.repeat_penalty != 1.0f;
}

void Blend(double* average, double value) {
  *average = *average == 0 ? value : 0.75 * *average + 0.25 * value;
}

const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      return "error";
    default:
      return "stop";
  }
}

}  // namespace

Scheduler::Scheduler(Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options,
                     Metrics& metrics, std::function<void(std::function<void()>)> post)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(options),
      metrics_(metrics),
      post_(std::move(post)),
      cache_(engine, tokenizer, metrics, options.prefix_cache),
      dsml_marker_(tokenizer.FindToken(kDsmlMarker)) {
  thread_ = std::thread([this] { Run(); });
}

Scheduler::~Scheduler() { Stop(); }

void Scheduler::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    interrupted_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status Scheduler::Submit(const std::shared_ptr<Job>& job) {
  job->submitted = Clock::now();
  const auto count = static_cast<int64_t>(job->sequences.size());
  std::vector<SequencePtr> sequences;
  for (const SequenceSpec& spec : job->sequences) {
    const auto length = static_cast<double>(spec.prompt->size() + 1);
    const double bytes = static_cast<double>(options_.kv_fixed_bytes) + length * options_.kv_bytes_per_token;
    if (bytes > static_cast<double>(options_.kv_budget_bytes)) {
      return InvalidArgument("a prompt of " + std::to_string(spec.prompt->size()) + " tokens needs " +
                             std::to_string(static_cast<int64_t>(bytes)) +
                             " bytes of KV, more than the budget of " +
                             std::to_string(options_.kv_budget_bytes) + "; the server's --kv-budget sets it");
    }
  }
  for (int i = 0; i < static_cast<int>(count); ++i) {
    auto s = std::make_unique<Sequence>(job, i, tokenizer_);
    SamplingParams sampling = s->params.sampling;
    // A grammar is for what follows the reasoning: no call may begin in there.
    const bool formed = s->params.content_grammar != nullptr;
    const bool apart = s->params.thinking && (HasPenalties(sampling) || formed);
    DSV4_ASSIGN_OR_RETURN(s->sampler, Sampler::Create(sampling, engine_.info().vocab_size));
    s->sampler->AddPrompt(*job->sequences[static_cast<size_t>(i)].prompt);
    if (apart) {
      sampling.presence_penalty = 0;
      sampling.frequency_penalty = 0;
      sampling.repeat_penalty = 1.0f;
      if (formed && dsml_marker_) {
        sampling.logit_bias.emplace_back(*dsml_marker_, -std::numeric_limits<float>::infinity());
      }
      // Another seed: both samplers count their own tokens, and equal numbers would be drawn twice.
      sampling.seed = s->sampler->seed() ^ 0x9E3779B97F4A7C15u;
      DSV4_ASSIGN_OR_RETURN(s->reasoning_sampler, Sampler::Create(sampling, engine_.info().vocab_size));
    }
    sequences.push_back(std::move(s));
  }
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return ResourceExhausted("the server is shutting down");
    // A request with more sequences than the queue has places is let into an empty queue.
    if (num_waiting_ > 0 && num_waiting_ + count > options_.max_waiting) {
      return ResourceExhausted("the queue is full (" + std::to_string(num_waiting_) + " waiting)");
    }
    num_waiting_ += count;
    for (SequencePtr& s : sequences) submitted_.push_back(std::move(s));
    interrupted_ = true;
  }
  wake_.notify_all();
  return {};
}

void Scheduler::Cancel(const std::shared_ptr<Job>& job) {
  job->cancelled = true;
  {
    const std::lock_guard lock(mutex_);
    changed_ = true;
    interrupted_ = true;
  }
  wake_.notify_all();
}

void Scheduler::SetPaused(const std::shared_ptr<Job>& job, bool paused) {
  job->paused = paused;
  {
    const std::lock_guard lock(mutex_);
    changed_ = true;
    interrupted_ = true;
  }
  wake_.notify_all();
}

double Scheduler::SecondsStuck() const {
  const int64_t begin = step_begin_ns_;
  return begin == 0 ? 0 : static_cast<double>(NowNs() - begin) * 1e-9;
}

void Scheduler::Fill(Gauges* g) const {
  g->running = num_running_;
  g->waiting = num_waiting_;
  g->kv_used_bytes = running_bytes_;
  g->kv_kept_bytes = std::max<int64_t>(kv_bytes_ - running_bytes_, 0);
  g->cuts_in_memory = cache_.num_in_memory();
  g->cuts_on_disk = cache_.num_on_disk();
  g->kv_disk_bytes = cache_.disk_bytes();
  g->kv_budget_bytes = options_.kv_budget_bytes;
}

// ---- The engine's thread

void Scheduler::Run() {
  while (WaitForWork()) {
    DropEnded();
    Admit();
    std::vector<Sequence*> batch = PlanStep();
    MakeRoom(batch);
    if (!std::exchange(one_step_, false) && CanDecodeOn(batch)) {
      DecodeOn(batch);
    } else if (!batch.empty()) {
      RunBatch(batch);
    }
    Deliver();
    Retire();
  }
  for (auto& s : waiting_) End(*s, FinishReason::kError, ResourceExhausted("the server is shutting down"));
  for (auto& s : running_) End(*s, FinishReason::kError, ResourceExhausted("the server is shutting down"));
  Deliver();
  Retire();
  const auto begin = Clock::now();
  cache_.SaveAndClear([&] { return Clock::now() - begin > kSaveTime; });
  kv_bytes_ = engine_.kv_bytes();
}

bool Scheduler::WaitForWork() {
  std::unique_lock lock(mutex_);
  const auto can_step = [this] {
    return std::any_of(running_.begin(), running_.end(), [](const SequencePtr& s) { return !s->job->paused; });
  };
  const auto ready = [&] { return stop_ || changed_ || !submitted_.empty() || can_step(); };
  const bool room = running_.empty() && !waiting_.empty();
  if (!room && !ready()) {
    std::optional<Clock::time_point> deadline;
    const auto note = [&](const SequencePtr& s) {
      if (s->job->deadline && (!deadline || *s->job->deadline < *deadline)) deadline = s->job->deadline;
    };
    std::for_each(running_.begin(), running_.end(), note);
    std::for_each(waiting_.begin(), waiting_.end(), note);
    if (deadline) {
      wake_.wait_until(lock, *deadline, ready);
    } else {
      wake_.wait(lock, ready);
    }
  }
  changed_ = false;
  interrupted_ = false;
  for (SequencePtr& s : submitted_) waiting_.push_back(std::move(s));
  submitted_.clear();
  return !stop_;
}

void Scheduler::DropEnded() {
  const auto now = Clock::now();
  const auto check = [&](Sequence& s) {
    if (s.job->cancelled) return End(s, FinishReason::kCancelled);
    if (s.job->deadline && now > *s.job->deadline) {
      End(s, FinishReason::kError, Cancelled("the request ran out of time"));
    }
  };
  for (auto& s : waiting_) check(*s);
  for (auto& s : running_) check(*s);
  Deliver();
  Retire();
}

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
                     .logits = rows == LogitRows::kNone ? nullptr : &s->logits});
  }
  step_begin_ns_ = NowNs();
  const Status status = engine_.Step(items);
  step_begin_ns_ = 0;
  return status;
}

void Scheduler::RunBatch(std::vector<Sequence*>& batch) {
  const auto begin = Clock::now();
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
  if (status.ok()) return AfterStep(batch, Seconds(Clock::now() - begin));
  // No session has changed. Each alone, so that only the one at fault ends.
  for (Sequence* s : batch) {
    const Status alone = batch.size() == 1 ? status : RunItems({&s, 1});
    if (alone.ok()) {
      AfterStep({&s, 1}, Seconds(Clock::now() - begin));
    } else {
      End(*s, FinishReason::kError, alone);
    }
  }
}

// Whether the next steps are known: one token of each sequence, chosen by its sampler alone.
bool Scheduler::CanDecodeOn(std::span<Sequence* const> batch) const {
  if (batch.empty() || interrupted_) return false;
  int64_t bytes = engine_.kv_bytes();
  for (const SequencePtr& s : running_) {
    if (s->session != nullptr && s->take > 0) bytes += Growth(*s, kDecodeTokens);
    if (s->take == 0 && !s->job->paused && !s->ended) return false;
  }
  return bytes <= options_.kv_budget_bytes && std::all_of(batch.begin(), batch.end(), [](const Sequence* s) {
           return s->generating() && !s->constraint && s->matcher == nullptr &&
                  s->out.counts.completion >= s->params.min_tokens;
         });
}

void Scheduler::DecodeOn(std::span<Sequence* const> batch) {
  std::vector<DecodeItem> items;
  for (Sequence* s : batch) {
    Sampler* sampler = s->reasoning_sampler != nullptr && s->writer.in_reasoning() ? s->reasoning_sampler.get()
                                                                                   : s->sampler.get();
    DecodeItem item{.session = s->session.get(), .sampler = sampler, .first = s->ids.back()};
    item.max_tokens = std::min(kDecodeTokens, s->params.max_tokens - s->out.counts.completion);
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
  step_begin_ = Clock::now();
  step_begin_ns_ = NowNs();
  const Status status = engine_.Decode(items, [&](size_t i, const SampledToken& token) {
    if (step_metrics_.generated_tokens > 0 && i <= last) {  // the next round of tokens has begun
      end_step();
      step_begin_ns_ = NowNs();
    }
    last = i;
    Sequence& s = *batch[i];
    const size_t length = s.ids.size();
    const bool reasoned = s.writer.in_reasoning();
    AcceptToken(s, {.id = token.id, .logprob = token.logprob, .top = token.top});
    // A place that became free is for those that wait.
    over = over || interrupted_ || (s.ended && !waiting_.empty()) ||
           (s.job->deadline && Clock::now() > *s.job->deadline);
    const bool as_planned = s.ids.size() == length + 1 && s.matcher == nullptr &&
                            (s.reasoning_sampler == nullptr || s.writer.in_reasoning() == reasoned);
    return !over && !s.ended && as_planned;
  });
  step_begin_ns_ = 0;
  end_step();
  if (status.ok()) return;
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
  metrics_.AddStep(step_metrics_);
  step_metrics_ = {};
  const auto now = Clock::now();
  Blend(&seconds_per_generating_step_, Seconds(now - step_begin_));
  step_begin_ = now;
}

void Scheduler::AfterStep(std::span<Sequence* const> batch, double seconds) {
  int64_t prompt_tokens = 0, generating = 0;
  for (Sequence* s : batch) {
    const size_t read_before = s->num_read() - s->take;
    const bool generated = s->take == 1 && read_before >= s->prompt_size;
    (generated ? generating : prompt_tokens) += static_cast<int64_t>(s->take);
    if (s->needs_prompt_rows()) {
      TakePromptRows(*s, read_before, s->take);
      if (s->num_unread() == 0) {
        const auto vocab = static_cast<size_t>(engine_.info().vocab_size);
        s->logits.erase(s->logits.begin(), s->logits.end() - static_cast<ptrdiff_t>(vocab));
      }
    }
    TakeCut(*s);
    if (s->num_unread() == 0) ChooseToken(*s);
  }
  step_metrics_.prompt_tokens = prompt_tokens;
  metrics_.AddStep(step_metrics_);
  step_metrics_ = {};
  // Moving averages, for the prompt budget.
  if (prompt_tokens == 0) {
    Blend(&seconds_per_generating_step_, seconds);
  } else {
    const double of_prompts = generating > 0 ? seconds - seconds_per_generating_step_ : seconds;
    if (of_prompts > 0) Blend(&seconds_per_prompt_token_, of_prompts / static_cast<double>(prompt_tokens));
  }
}

void Scheduler::TakePromptRows(Sequence& s, size_t begin, size_t count) {
  const auto vocab = static_cast<size_t>(engine_.info().vocab_size);
  for (size_t i = begin; i < begin + count && i < s.prompt_size; ++i) {
    if (i < s.prompt_rows_done) continue;  // read again after a preemption
    // Row i - 1 says how likely token i was.
    const std::span<const float> row = i == begin ? std::span<const float>(s.prompt_row)
                                                  : std::span<const float>(
                                                        s.logits.data() + (i - 1 - begin) * vocab, vocab);
    OutputToken token{.id = s.ids[i]};
    if (i > 0) token = TokenLogprobs(row, s.ids[i], s.params.prompt_logprobs);
    s.out.prompt.push_back(std::move(token));
    s.prompt_rows_done = i + 1;
  }
  s.prompt_row.assign(s.logits.end() - static_cast<ptrdiff_t>(vocab), s.logits.end());
  if (s.prompt_rows_done == s.prompt_size) s.prompt_row = {};
}

void Scheduler::ChooseToken(Sequence& s) {
  if (s.params.max_tokens == 0) return End(s, FinishReason::kLength);
  // A text that is complete may have nothing but its end left.
  const bool complete = s.matcher != nullptr && s.matcher->complete();
  if (s.out.counts.completion < s.params.min_tokens && !complete) {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (const TokenId id : engine_.info().eos_token_ids) s.logits[static_cast<size_t>(id)] = kNever;
    for (const TokenId id : s.params.stop_ids) s.logits[static_cast<size_t>(id)] = kNever;
  }
  std::vector<float> unmasked;
  const int num_top = s.params.sampling.top_logprobs;
  if ((s.constraint || s.matcher != nullptr) && num_top >= 0) unmasked = s.logits;
  if (s.constraint) s.constraint->Mask(&s.logits);
  if (s.matcher != nullptr && !s.matcher->Mask(s.logits)) {
    return End(s, FinishReason::kError, Internal("the grammar of the output allows no token here"));
  }
  Sampler& sampler = s.reasoning_sampler != nullptr && s.writer.in_reasoning() ? *s.reasoning_sampler
                                                                               : *s.sampler;
  Result<SampledToken> sampled = sampler.Sample(s.logits);
  if (!sampled.ok()) return End(s, FinishReason::kError, sampled.status());
  // Log-probabilities are the model's own.
  if (!unmasked.empty()) return AcceptToken(s, TokenLogprobs(unmasked, sampled->id, num_top));
  AcceptToken(s, {.id = sampled->id, .logprob = sampled->logprob, .top = std::move(sampled->top)});
}

void Scheduler::AcceptToken(Sequence& s, OutputToken token) {
  const auto now = Clock::now();
  const TokenId id = token.id;
  const bool reasoned = s.writer.in_reasoning();
  ++s.out.counts.completion;
  ++step_metrics_.generated_tokens;
  if (reasoned) ++s.out.counts.reasoning;
  if (!s.has_token) {
    s.has_token = true;
    s.first_token = now;
    step_metrics_.first_token_s.push_back(Seconds(now - s.job->submitted));
  } else {
    step_metrics_.token_gaps_s.push_back(Seconds(now - s.last_token));
  }
  s.last_token = now;

  const auto& eos = engine_.info().eos_token_ids;
  const auto& stop_ids = s.params.stop_ids;
  if (std::find(eos.begin(), eos.end(), id) != eos.end() && (!s.params.ignore_eos || s.matcher != nullptr)) {
    // What the grammar is for comes after the reasoning.
    if (reasoned && s.params.content_grammar != nullptr) return Force(s, std::string(kEndThink));
    return End(s, FinishReason::kStop);
  }
  if (std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end()) {
    s.out.matched_id = id;
    return End(s, FinishReason::kStop);
  }
  s.ids.push_back(id);
  s.out.tokens.push_back(std::move(token));
  if (s.constraint) {
    s.constraint->Accept(id);
    if (s.constraint->done()) s.constraint.reset();
  }
  if (s.matcher != nullptr && !s.matcher->Accept(id)) {
    return End(s, FinishReason::kError, Internal("the grammar of the output does not allow its next token"));
  }
  if (s.matcher == nullptr && s.params.call_grammar != nullptr && id == dsml_marker_) BeginCall(s);
  const bool ended = s.writer.Push(id, &s.out);
  if (ended) {
    s.out.matched_stop = s.writer.matched_stop();
    return End(s, s.writer.finish());
  }
  if (s.out.counts.completion >= s.params.max_tokens) return End(s, FinishReason::kLength);
  if (static_cast<int64_t>(s.ids.size()) >= engine_.info().max_context) return End(s, FinishReason::kLength);
  if (reasoned && s.writer.in_content()) {
    BeginContent(s);
  } else if (reasoned && s.params.thinking_budget >= 0 && !s.end_think_forced &&
             s.out.counts.reasoning >= s.params.thinking_budget) {
    s.end_think_forced = true;
    Force(s, std::string(kEndThink));
  }
}

// The first token of the content comes next.
void Scheduler::BeginContent(Sequence& s) {
  if (s.matcher == nullptr && s.params.content_grammar != nullptr) {
    s.matcher = s.params.content_grammar->NewMatcher();
  }
  Force(s, "");
}

// The model has written the marker of a tag: with "<" before it, its grammar holds from here on.
void Scheduler::BeginCall(Sequence& s) {
  if (s.ids.size() < 2 || !tokenizer_.TokenBytes(s.ids[s.ids.size() - 2]).ends_with('<')) return;
  s.matcher = s.params.call_grammar->NewMatcher();
  if (!s.matcher->AcceptText(std::string("<").append(kDsmlMarker))) s.matcher.reset();
}

// Puts `text` behind the sequence as if the model had chosen it; an empty text stands for the beginning of the call
// that the request requires, if it does.
void Scheduler::Force(Sequence& s, const std::string& text) {
  std::string forced = text;
  if (text.empty()) {
    if (s.params.required_calls.empty() || s.call_forced) return;
    s.call_forced = true;
    forced = kCallBegin;
    if (s.params.required_calls.size() == 1) {
      forced += s.params.required_calls.front() + "\">\n";
    }
  }
  for (const TokenId id : tokenizer_.Encode(forced)) {
    if (!s.ended) AcceptToken(s, {.id = id});
  }
  if (text.empty() && !s.ended && s.params.required_calls.size() > 1 && s.matcher == nullptr) {
    std::vector<std::string> choices;
    for (const std::string& name : s.params.required_calls) choices.push_back(name + "\">\n");
    s.constraint.emplace(tokenizer_, std::move(choices));
  }
}

void Scheduler::End(Sequence& s, FinishReason reason, Status error) {
  if (s.ended) return;
  s.ended = true;
  s.writer.Finish(&s.out);
  if (reason == FinishReason::kStop && s.writer.finish() == FinishReason::kToolCalls)
    reason = FinishReason::kToolCalls;
  if (reason == FinishReason::kStop && s.out.matched_stop.empty())
    s.out.matched_stop = s.writer.matched_stop();
  s.out.finish = reason;
  s.end_reason = reason;
  s.out.error = std::move(error);
}

void Scheduler::Deliver() {
  std::vector<std::pair<std::shared_ptr<Job>, std::vector<StepOutput>>> outputs;
  std::unordered_map<const Job*, size_t> places;
  const auto collect = [&](Sequence& s) {
    if (!s.has_output()) return;
    const auto [place, is_new] = places.try_emplace(s.job.get(), outputs.size());
    if (is_new) outputs.push_back({s.job, {}});
    StepOutput next;
    next.index = s.index;
    next.counts = s.out.counts;
    outputs[place->second].second.push_back(std::exchange(s.out, std::move(next)));
  };
  for (auto& s : waiting_) collect(*s);
  for (auto& s : running_) collect(*s);
  if (outputs.empty()) return;
  post_([outputs = std::move(outputs)]() mutable {
    for (auto& [job, list] : outputs) {
      if (!job->cancelled || list.back().finish != FinishReason::kNone) job->on_output(list);
    }
  });
}

// Takes ended sequences out; what they read and wrote is kept for the next turn.
void Scheduler::Retire() {
  const auto retire = [this](Sequence& s, bool ran) {
    const auto now = Clock::now();
    const double total = Seconds(now - s.job->submitted);
    const double queued = s.was_admitted ? Seconds(s.admitted - s.job->submitted) : total;
    metrics_.AddRequest({.reason = ReasonName(s.end_reason),
                         .prompt_tokens = s.out.counts.prompt,
                         .generated_tokens = s.out.counts.completion,
                         .queue_s = queued,
                         .prefill_s = s.has_token ? Seconds(s.first_token - s.admitted) : 0,
                         .decode_s = s.has_token ? Seconds(s.last_token - s.first_token) : 0,
                         .total_s = total});
    if (s.end_reason != FinishReason::kError) KeepReply(s);
    s.session.reset();
    --(ran ? num_running_ : num_waiting_);  // idle() says that nothing is held
  };
  for (auto& s : waiting_) {
    if (s->ended) retire(*s, false);
  }
  for (auto& s : running_) {
    if (s->ended) retire(*s, true);
  }
  std::erase_if(waiting_, [](const SequencePtr& s) { return s->ended; });
  std::erase_if(running_, [](const SequencePtr& s) { return s->ended; });
  running_bytes_ = RunningBytes();
  kv_bytes_ = engine_.kv_bytes();
}

}  // namespace dsv4::server
