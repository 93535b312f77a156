// Continuous batching: one thread runs the engine; every step takes one token of each sequence that generates and a
// piece of each prompt that is still being read. By default a sequence's output depends on nothing beside it (the
// engine's rows do not depend on their batch or chunk), so all of this is about time and memory only. What may move its
// last bits on a GPU is which of its rows came from the prefix cache: those have the bits of the request that computed
// them. Options that change this: docs/dev/numerics.md, 4.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/tokenizer.h"
#include "server/cache/prefix_cache.h"
#include "server/metrics/expert_watch.h"
#include "server/metrics/metrics.h"
#include "server/metrics/step_clock.h"
#include "server/schedule/batcher.h"
#include "server/schedule/generation.h"
#include "server/schedule/step_times.h"
#include "server/schedule/step_trace.h"
#include "server/structured/mask_ahead.h"

namespace dsv4::server {

constexpr std::chrono::seconds kSaveTime{60};  // for writing the prefix cache to disk at the end

struct SchedulerOptions {
  int64_t max_running = 64;       // sequences in the batch
  int64_t max_waiting = 256;      // sequences in the queue
  bool several_tenants = false;   // one of them leaves places and KV memory to others
  int64_t prefill_chunk = 512;    // prompt tokens of a step when nothing generates
  double max_gap_s = 0.25;        // aim of the time between two tokens of a sequence; 0: none
  double target_ttft_s = 2;       // while a prompt has waited longer, steps may take more than max_gap_s; 0: never
  double gather_s = 0;            // an idle engine begins when no prompt came for so long, or ten times as much is over
  int64_t kv_budget_bytes = 0;    // of all sessions and of the prefix cache
  int mask_threads = 2;           // for grammars
  int64_t kv_fixed_bytes = 0;     // of one session: what does not grow
  double kv_bytes_per_token = 0;  // of one session: what grows
  PrefixCacheOptions prefix_cache = {};
  std::string count_experts_file = {};                                       // (ExpertWatch); empty: none
  ExpertCounts counted_experts = {};                                         // what it holds
  std::chrono::milliseconds count_experts_every = ExpertWatch::kWriteEvery;  // so often it is written
  std::string trace_steps = {};  // file for a line per step (StepTrace); empty: none
  StepClock::NowFn now = {};     // the time, for tests; empty: the steady clock
  bool restart_device = true;    // open a failed device again; false: on_fatal at once
  // By the engine's thread; may be empty.
  std::function<void(const std::string&)> on_warning = {};  // one line
  // the device failed, and why; or it was opened again, and ""
  std::function<void(const char* event, const std::string& what)> on_device = {};
  std::function<void(const Status&)> on_fatal = {};  // there is no device any more: every request fails from now on
};

class Scheduler {
 public:
  // `post` runs a call on the I/O thread.
  Scheduler(Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options, Metrics& metrics,
            std::function<void(std::function<void()>)> post);
  ~Scheduler();

  // ---- Any thread.

  // Errors: kResourceExhausted (the queue is full: try again later), kInvalidArgument (a prompt that can never fit).
  Status Submit(const std::shared_ptr<Job>& job);
  void Cancel(const std::shared_ptr<Job>& job);
  void SetPaused(const std::shared_ptr<Job>& job, bool paused);

  std::vector<TokenId> EncodePrompt(const std::string& tenant, const RenderedPrompt& prompt) const {
    return cache_.EncodePrompt(tenant, prompt);
  }

  // Seconds since the engine's thread last got a step further, or loading the model again; 0 when there is nothing to
  // do.
  double SecondsStuck() const;
  enum class Activity : uint8_t { kSteps, kRestart, kSave, kNone };
  Activity activity() const { return activity_; }  // kSave, kNone: of a thread that was told to stop
  // The device has failed, and is being opened anew or is gone.
  bool device_failed() const { return device_failed_; }
  bool idle() const { return num_running_ == 0 && num_waiting_ == 0; }
  void Fill(Gauges* gauges) const;

  // No request comes any more: a device that fails is not opened anew.
  void Drain() { draining_ = true; }
  // Ends the running step (Engine::SetStopped), every sequence with an error, and the thread, which Stop waits for. No
  // output is posted after it.
  void BeginStop();
  void Stop();

 private:
  struct Sequence;
  using SequencePtr = std::unique_ptr<Sequence>;

  PrefixCacheOptions WithWake(PrefixCacheOptions options);
  void Wake();
  void Run();
  bool WaitForWork();  // false: stop
  void TakeSubmitted();
  void GatherPrompts(std::unique_lock<std::mutex>& lock);
  void DropEnded();
  // What the sequences in the batch will hold once their prompts are read; what several share counts once.
  struct Planned {
    int64_t bytes = 0, most_shared = 0;
    void Add(const Scheduler& scheduler, const Sequence& s);
  };
  enum class Admission { kAdmitted, kLater, kNoRoom };  // kLater: not it, but perhaps one behind it
  struct Turn {
    Sequence* sequence;
    int64_t places, tenants_places;  // that its request and its tenant have before it
  };
  std::vector<Turn> InTurn() const;
  void Admit();
  // leaves_room: its request or its tenant has other sequences in the batch and leaves KV memory to others.
  Admission TryToAdmit(Sequence& s, bool leaves_room, Planned* planned);
  void MoveToBatch(Sequence* s);
  Result<std::unique_ptr<Session>> Open(const PrefixCache::Found& found);
  std::vector<Sequence*> PlanStep();
  std::vector<Sequence*> PlanTokens(std::vector<Sequence*>* prompts);
  void OrderPrompts(std::vector<Sequence*>& prompts) const;
  static void OrderByRequest(std::span<Sequence*> prompts);
  double LongestWait(std::span<Sequence* const> prompts) const;
  void AddPrompts(std::span<Sequence*> prompts, const StepLimits& limits, std::vector<Sequence*>* batch);
  bool KnowsAllowed(Sequence& s, Clock::time_point until);
  size_t MayFollow(Sequence& s, std::span<const TokenId> drafted, Clock::time_point until);
  void MakeRoom(std::vector<Sequence*>& batch);
  bool Evict();
  bool Preempt(const Sequence* keep);
  void StartOver(const Sequence* s);
  bool ShouldWait(const Sequence& s, size_t cut);
  void PlanCuts(Sequence& s, size_t common);
  void TakeCut(Sequence& s);
  void KeepReply(Sequence& s);
  void KeepSnapshot(Sequence& s, size_t num_ids, RenderedPrompt rendered);
  void RunStep(std::vector<Sequence*>& batch);
  bool FirstTokensWouldWait() const;
  void RunBatch(std::vector<Sequence*>& batch);
  Status RunItems(std::span<Sequence* const> batch);
  bool CanDecodeOn(std::span<Sequence* const> batch) const;
  void DecodeOn(std::span<Sequence* const> batch);
  void AfterRound(double next_pass_s);
  void AfterStep(std::span<Sequence* const> batch);
  void AddPass(const StepShape& pass, double seconds);
  void TakeTime(double next_pass_s = 0);
  void WarnOfLongSteps(double pass_s);
  void WarnOfHostWork(const WorkSeconds& seconds);
  void TakePromptRows(Sequence& s, size_t begin, size_t count);
  Status MakeSamplers(Sequence& s) const;
  void ChooseToken(Sequence& s);
  static Sampler& SamplerOf(const Sequence& s);
  static bool IsHeld(const Sequence& s);
  std::span<const uint32_t> Allowed(Sequence& s) const;
  void AcceptToken(Sequence& s, OutputToken token);
  void BeginContent(Sequence& s);
  void BeginCall(Sequence& s);
  void Force(Sequence& s, const std::string& text);
  void End(Sequence& s, FinishReason reason, Status error = {});
  void Deliver();
  void Retire();
  void EndAll(const Status& why);
  void OnDeviceFailure(const Status& failure);
  Status RestartDevice();
  bool ending() const;
  bool is_stopping() const {
    const std::lock_guard lock(mutex_);
    return stop_;
  }
  int64_t RunningBytes() const;
  int64_t BytesAfter(const Sequence& s, size_t more_tokens) const;
  int64_t Growth(const Sequence& s, size_t more_tokens) const;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const SchedulerOptions options_;
  Metrics& metrics_;
  const std::function<void(std::function<void()>)> post_;

  // Guarded by mutex_. In front of the cache, whose threads call Wake from the beginning.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<SequencePtr> submitted_;  // TakeSubmitted puts them behind waiting_
  bool changed_ = false;
  bool stop_ = false;
  std::atomic<bool> interrupted_{false};  // something changed: the steps that are under way end

  PrefixCache cache_;
  ExpertWatch expert_watch_;
  const std::optional<TokenId> dsml_marker_;  // the token that marks tags of tool calls
  const std::optional<TokenId> end_think_;    // the token that ends reasoning
  const std::optional<TokenId> user_marker_;  // the token in front of what a user says

  // Of the engine's thread.
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;  // in the order of admission
  StepClock clock_;
  const Clock::time_point begin_ = clock_.Now();
  Clock::time_point next_warning_;
  bool one_step_ = false;  // the next one is not Decode's: it failed, and Step tells which sequence is at fault
  StepTimes step_times_;
  StepRecord step_;  // what is known of the step so far
  StepTrace trace_;
  Metrics::Step step_metrics_;
  double round_pass_s_ = 0;           // of the round of Decode whose tokens come
  std::vector<double> host_seconds_;  // of each of the last steps
  WorkSeconds host_sums_ = {};        // of the same steps
  bool host_warned_ = false;
  bool tokens_follow_ = false;  // the step has prompts; a token of each sequence that writes comes after them

  std::atomic<int64_t> num_waiting_{0}, num_running_{0}, running_bytes_{0}, kv_bytes_{0}, admission_limit_{0};
  std::atomic<bool> device_failed_{false};
  std::atomic<int64_t> step_begin_ns_{0};  // 0: there is nothing to do
  std::atomic<bool> draining_{false};
  std::atomic<Activity> activity_{Activity::kSteps};
  std::unique_ptr<MaskWorkers> mask_workers_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
