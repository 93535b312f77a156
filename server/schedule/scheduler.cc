#include "server/schedule/scheduler.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "server/base/memory_reserve.h"
#include "server/schedule/sequence.h"

namespace dsv4::server {

namespace {

constexpr std::string_view kUserMarker = "<｜User｜>";
constexpr std::chrono::milliseconds kMemoryPause{10};

// As vLLM counts requests: a reply that ends with calls has stopped.
const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      return "error";
    default:
      return "stop";
  }
}

}  // namespace

Scheduler::Scheduler(Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options, Metrics& metrics,
                     std::function<void(std::function<void()>)> post)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(options),
      metrics_(metrics),
      post_(std::move(post)),
      cache_(engine, tokenizer, metrics, WithWake(options.prefix_cache)),
      expert_watch_(engine, metrics, options.count_experts_file, options.counted_experts, options.count_experts_every),
      dsml_marker_(tokenizer.FindToken(kDsmlMarker)),
      end_think_(tokenizer.FindToken("</think>")),
      user_marker_(tokenizer.FindToken(kUserMarker)),
      clock_(options.now),
      trace_(options.trace_steps) {
  admission_limit_ = options_.max_running;
  mask_workers_ = std::make_unique<MaskWorkers>(options_.mask_threads, [this] { Wake(); });
  thread_ = std::thread([this] { Run(); });
}

Scheduler::~Scheduler() { Stop(); }

PrefixCacheOptions Scheduler::WithWake(PrefixCacheOptions options) {
  options.on_disk_done = [this] { Wake(); };
  return options;
}

// Something changed that the engine's thread should look at.
void Scheduler::Wake() {
  {
    const std::lock_guard lock(mutex_);
    changed_ = true;
    interrupted_ = true;
  }
  wake_.notify_all();
}

void Scheduler::BeginStop() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(stop_, true)) engine_.SetStopped(true);
    interrupted_ = true;
  }
  wake_.notify_all();
}

void Scheduler::Stop() {
  BeginStop();
  if (thread_.joinable()) thread_.join();
}

Status Scheduler::Submit(const std::shared_ptr<Job>& job) {
  job->submitted = clock_.Now();
  const auto count = static_cast<int64_t>(job->sequences.size());
  std::vector<SequencePtr> sequences;
  for (const SequenceSpec& spec : job->sequences) {
    DSV4_RETURN_IF_ERROR(ValidateSampling(spec.params->sampling, engine_.info().vocab_size));
    const auto length = static_cast<double>(spec.prompt->size() + 1);
    const double bytes = static_cast<double>(options_.kv_fixed_bytes) + length * options_.kv_bytes_per_token;
    if (bytes > static_cast<double>(options_.kv_budget_bytes)) {
      return InvalidArgument("a prompt of " + std::to_string(spec.prompt->size()) + " tokens needs " +
                             std::to_string(static_cast<int64_t>(bytes)) + " bytes of KV, more than the budget of " +
                             std::to_string(options_.kv_budget_bytes) + " bytes (--kv-budget)");
    }
  }
  for (int i = 0; i < static_cast<int>(count); ++i) sequences.push_back(std::make_unique<Sequence>(job, i, tokenizer_));
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return ResourceExhausted("the server is shutting down");
    // A request with more sequences than the queue has places is let into an empty queue.
    if (num_waiting_ > 0 && num_waiting_ + count > options_.max_waiting) {
      return ResourceExhausted("the queue is full (" + std::to_string(num_waiting_) + " waiting)");
    }
    submitted_.reserve(submitted_.size() + sequences.size());
    num_waiting_ += count;
    for (SequencePtr& s : sequences) submitted_.push_back(std::move(s));
    interrupted_ = true;
  }
  wake_.notify_all();
  return {};
}

void Scheduler::Cancel(const std::shared_ptr<Job>& job) {
  job->cancelled = true;
  Wake();
}

void Scheduler::SetPaused(const std::shared_ptr<Job>& job, bool paused) {
  job->paused = paused;
  Wake();
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
  const double page_bytes = kKvPageTokens * options_.kv_bytes_per_token;
  if (page_bytes > 0)
    g->kv_budget_pages = static_cast<int64_t>(static_cast<double>(options_.kv_budget_bytes) / page_bytes);
  g->prefix_cache = cache_.options().enabled;
  g->max_gap_s = options_.max_gap_s;
  g->admission_limit = admission_limit_;
}

// ---- The engine's thread

void Scheduler::Run() {
  const auto end_all = [this](const char* why) {
    for (auto& s : waiting_) End(*s, FinishReason::kError, ResourceExhausted(why));
    for (auto& s : running_) End(*s, FinishReason::kError, ResourceExhausted(why));
    Retire();
  };
  const auto warn = [this](const Status& status) {
    if (!status.ok() && options_.on_warning) options_.on_warning(status.message());
  };
  const auto step = [this, &warn] {
    DropEnded();
    cache_.Poll();
    {
      const WorkSpan span(clock_, StepWork::kAdmission);
      Admit();
    }
    std::vector<Sequence*> batch = PlanStep();
    MakeRoom(batch);
    kv_bytes_ = engine_.kv_bytes();  // Admit may have gone beyond the budget
    if (!std::exchange(one_step_, false) && CanDecodeOn(batch)) {
      DecodeOn(batch);
    } else if (!batch.empty()) {
      RunStep(batch);
    }
    Retire();
    warn(expert_watch_.Look(/*idle=*/running_.empty()));
  };
  bool out_of_memory = false;
  while (WaitForWork()) {
    out_of_memory = !HasMemoryFor([&] {
      // Whose turn it was cannot be told: all end, and what they held is free for those that come.
      if (out_of_memory) end_all("the server has no memory left");
      TakeSubmitted();
      step();
      if (const Status health = engine_.health(); !health.ok()) OnDeviceFailure(health);
    });
    if (!out_of_memory) continue;
    std::this_thread::sleep_for(kMemoryPause);  // other threads free something meanwhile
    Wake();
  }
  engine_.SetStopped(false);
  HasMemoryFor([&] {
    TakeSubmitted();  // those that came last are told, too
    end_all("the server is shutting down");
  });
  const auto begin = Clock::now();
  activity_ = Activity::kSave;
  HasMemoryFor([&] { cache_.SaveAndClear([&] { return Clock::now() - begin > kSaveTime; }); });
  kv_bytes_ = engine_.kv_bytes();
  HasMemoryFor([&] { warn(expert_watch_.Finish()); });
  HasMemoryFor([&] { warn(trace_.Write()); });
  activity_ = Activity::kNone;
}

// Allocates nothing: nobody would catch what that throws.
bool Scheduler::WaitForWork() {
  std::unique_lock lock(mutex_);
  const auto can_step = [this] {
    return std::any_of(running_.begin(), running_.end(),
                       [](const SequencePtr& s) { return !s->job->paused && !s->waits_for_mask; });
  };
  const auto ready = [&] { return stop_ || changed_ || !submitted_.empty() || can_step(); };
  const bool room = running_.empty() && std::any_of(waiting_.begin(), waiting_.end(),
                                                    [](const SequencePtr& s) { return !s->waits_for_disk; });
  if (!room && !ready()) {
    std::optional<Clock::time_point> deadline;
    const auto note = [&](const SequencePtr& s) {
      if (s->job->deadline && (!deadline || *s->job->deadline < *deadline)) deadline = s->job->deadline;
    };
    std::for_each(running_.begin(), running_.end(), note);
    std::for_each(waiting_.begin(), waiting_.end(), note);
    if (const auto write = expert_watch_.next_write(); write && (!deadline || *write < *deadline)) deadline = write;
    step_begin_ns_ = 0;
    if (deadline) {
      wake_.wait_until(lock, *deadline, ready);
    } else {
      wake_.wait(lock, ready);
    }
    clock_.Restart();
  }
  if (options_.gather_s > 0 && running_.empty() && waiting_.empty()) GatherPrompts(lock);
  step_begin_ns_ = NowNs();
  changed_ = false;
  interrupted_ = false;
  return !stop_;
}

void Scheduler::TakeSubmitted() {
  const std::lock_guard lock(mutex_);
  // All or none of them.
  waiting_.insert(waiting_.end(), std::make_move_iterator(submitted_.begin()),
                  std::make_move_iterator(submitted_.end()));
  submitted_.clear();
}

// Prompts that come together are read together: a pass of one costs nearly what a pass of several does.
void Scheduler::GatherPrompts(std::unique_lock<std::mutex>& lock) {
  const auto pause = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.gather_s));
  const auto end = Clock::now() + 10 * pause;
  for (size_t seen = 0; !stop_ && submitted_.size() > seen && Clock::now() < end;) {
    seen = submitted_.size();
    wake_.wait_for(lock, pause, [&] { return stop_ || submitted_.size() > seen; });
  }
  clock_.Restart();
}

void Scheduler::DropEnded() {
  const auto now = clock_.Now();
  const auto check = [&](Sequence& s) {
    if (s.job->cancelled) return End(s, FinishReason::kCancelled);
    if (s.job->deadline && now > *s.job->deadline) {
      End(s, FinishReason::kError, Cancelled("the request timed out"));
    }
  };
  for (auto& s : waiting_) check(*s);
  for (auto& s : running_) check(*s);
  Retire();
}

void Scheduler::Deliver() {
  const WorkSpan span(clock_, StepWork::kTokens);
  std::vector<std::pair<std::shared_ptr<Job>, std::vector<StepOutput>>> outputs;
  std::unordered_map<const Job*, size_t> places;
  const auto now = clock_.Now();
  const auto collect = [&](Sequence& s) {
    if (!s.has_output() || (s.ended && !s.is_kept)) return;
    const auto [place, is_new] = places.try_emplace(s.job.get(), outputs.size());
    if (is_new) outputs.push_back({s.job, {}});
    if (s.params.progress) s.out.counts.read = std::max(s.out.counts.read, s.num_prompt_read());
    s.out.times = s.Times(now);
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
      // Who cancelled wants nothing more, but is told of each sequence that it ended.
      if (job->cancelled) std::erase_if(list, [](const StepOutput& o) { return o.finish == FinishReason::kNone; });
      if (!list.empty()) job->on_output(list);
    }
  });
}

// Delivers all output and takes ended sequences out. What they read and wrote is kept before their clients learn that
// they ended: a next turn that is sent at once finds it.
void Scheduler::Retire() {
  const auto keep = [this](Sequence& s) {
    if (!s.ended || s.is_kept) return;
    const WorkSpan span(clock_, StepWork::kReply);
    s.is_kept = true;
    if (s.end_reason != FinishReason::kError && engine_.health().ok()) HasMemoryFor([&] { KeepReply(s); });
    s.session.reset();  // the next one has its room
  };
  for (auto& s : waiting_) keep(*s);
  for (auto& s : running_) keep(*s);
  Deliver();
  const auto retire = [this](Sequence& s) {
    const WorkSpan span(clock_, StepWork::kReply);
    const auto now = clock_.Now();
    const SequenceTimes times = s.Times(now);
    metrics_.AddRequest({.reason = ReasonName(s.end_reason),
                         .prompt_tokens = s.out.counts.prompt,
                         .generated_tokens = s.out.counts.completion,
                         .queue_s = times.queued,
                         .prefill_s = s.has_token ? times.prompt : 0,
                         .decode_s = times.decode,
                         .total_s = Seconds(now - s.job->submitted)});
  };
  // One after the other: where memory runs out, those before are gone and counted, and none is twice.
  const auto retire_ended = [&retire](auto& sequences, std::atomic<int64_t>& count) {
    for (auto at = sequences.begin(); at != sequences.end();) {
      if (!(*at)->ended) {
        ++at;
        continue;
      }
      retire(**at);
      at = sequences.erase(at);
      --count;  // behind that: idle() says that nothing is held
    }
  };
  retire_ended(waiting_, num_waiting_);
  retire_ended(running_, num_running_);
  // In this order: who reads in between must not take what a sequence gave back for kept.
  kv_bytes_ = engine_.kv_bytes();
  running_bytes_ = RunningBytes();
}

}  // namespace dsv4::server
