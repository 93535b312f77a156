// The service: the scheduler with what it needs, and requests that each get one last event.
#include "dsv4/service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "server/base/memory_reserve.h"
#include "server/service/event_thread.h"
#include "server/service/read_request.h"
#include "server/structured/compile_queue.h"

namespace dsv4::server {

namespace {

constexpr int kSchemaThreads = 2;
constexpr size_t kMaxQueuedSchemas = 256;

Status ToStatus(const ApiError& error) {
  switch (error.status) {
    case 400:
      return InvalidArgument(error.what());
    case 404:
      return NotFound(error.what());
    case 501:
      return Unsupported(error.what());
    case 429:
    case 503:
      return ResourceExhausted(error.what());
    default:
      return Internal(error.what());
  }
}

// Runs `call`, which returns a Status or a Result, and turns what it throws into a Status.
template <typename Call>
auto Caught(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const ApiError& error) {
    return ToStatus(error);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("there is no memory for the request");
  } catch (const std::exception& error) {
    return Internal(std::string("internal error: ") + error.what());
  }
}

ServerOptions ApiOptions(const ServiceOptions& options) {
  ServerOptions api;
  api.model_dir = options.model_dir;
  api.dialect = options.dialect;
  api.special_tokens_in_content = options.special_tokens_in_content;
  api.default_thinking = options.default_thinking;
  return api;
}

Status Ending() { return ResourceExhausted("the service is shutting down"); }

class ServiceCore {
 public:
  ServiceCore(Engine& engine, const Tokenizer& tokenizer, const ServiceOptions& options)
      : engine_(engine),
        options_(options),
        api_options_(ApiOptions(options)),
        metrics_("service"),
        grammars_(GrammarCompiler::Create(tokenizer, engine.info().vocab_size, engine.info().eos_token_ids)),
        scheduler_(engine, tokenizer, MakeSchedulerOptions(), metrics_,
                   [this](std::function<void()> call) { events_.Post(std::move(call)); }),
        compile_queue_(std::make_unique<CompileQueue>(kSchemaThreads, kMaxQueuedSchemas)),
        api_{.options = api_options_,
             .model = engine.info(),
             .tokenizer = tokenizer,
             .scheduler = scheduler_,
             .metrics = metrics_,
             .grammars = grammars_.get(),
             .default_sampling = {},
             .created = UnixTime()} {}

  Status ReadDefaults() {
    if (options_.model_dir.empty()) return {};
    DSV4_ASSIGN_OR_RETURN(api_.default_sampling, ReadDefaultSampling(options_.model_dir));
    return {};
  }

  Result<uint64_t> Submit(Request request, EventFn on_event) {
    return Caught([&]() -> Result<uint64_t> { return Begin(MakeJob(api_, std::move(request)), std::move(on_event)); });
  }

  Result<uint64_t> SubmitJson(std::string_view body, EventFn on_event, const std::string& tenant) {
    return Caught([&] { return Begin(ReadJob(api_, body, tenant), std::move(on_event)); });
  }

  Status Cancel(uint64_t id) {
    const std::shared_ptr<Open> open = Find(id);
    if (open == nullptr) return NotFound("request " + std::to_string(id) + " has ended, or there is none");
    *open->cancelled = true;
    scheduler_.Cancel(open->job);
    return {};
  }

  void Pause(uint64_t id, bool paused) {
    if (const std::shared_ptr<Open> open = Find(id)) scheduler_.SetPaused(open->job, paused);
  }

  ServiceStats Stats() const {
    Gauges gauges;
    scheduler_.Fill(&gauges);
    const Metrics::Totals totals = metrics_.totals();
    ServiceStats stats{.running = gauges.running,
                       .waiting = gauges.waiting,
                       .kv_used_bytes = gauges.kv_used_bytes,
                       .kv_kept_bytes = gauges.kv_kept_bytes,
                       .kv_budget_bytes = gauges.kv_budget_bytes,
                       .prompt_tokens = totals.prompt_tokens,
                       .generated_tokens = totals.generated_tokens,
                       .prefix_queries = totals.prefix_queries,
                       .prefix_hits = totals.prefix_hits,
                       .device_failed = scheduler_.device_failed()};
    const std::lock_guard lock(mutex_);
    stats.open = static_cast<int64_t>(open_.size());
    stats.draining = draining_;
    return stats;
  }

  bool Drain(double timeout_s) {
    std::unique_lock lock(mutex_);
    draining_ = true;
    scheduler_.Drain();
    const auto none = [this] { return open_.empty(); };
    if (events_.is_current()) return none();
    if (timeout_s < 0) {
      ended_.wait(lock, none);
      return true;
    }
    return ended_.wait_for(lock, std::chrono::duration<double>(std::min(timeout_s, 1e9)), none);
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      draining_ = true;
    }
    scheduler_.BeginStop();
    if (events_.is_current()) return;
    const std::lock_guard lock(stop_mutex_);
    TakeCompileQueue().reset();  // its calls end as cancelled
    scheduler_.Stop();
    events_.Post([this] { EndOpen(); });
    events_.Finish();
  }

 private:
  struct Open {
    uint64_t id;
    std::shared_ptr<Job> job;
    EventFn on_event;
    std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
    bool begins = true;  // Submit has not returned; guarded by mutex_
    bool ended = false;  // of the event thread
  };
  using OpenPtr = std::shared_ptr<Open>;

  SchedulerOptions MakeSchedulerOptions() {
    const auto notice = [this](std::string_view event, const std::string& what) {
      if (options_.on_notice) options_.on_notice(event, what);
    };
    return {.max_running = options_.max_running,
            .max_waiting = options_.max_waiting,
            .prefill_chunk = options_.prefill_chunk,
            .max_gap_s = options_.max_gap_s,
            .target_ttft_s = options_.target_ttft_s,
            .gather_s = options_.gather_s,
            .kv_budget_bytes = options_.kv_budget_bytes,
            .kv_fixed_bytes = engine_.info().kv_fixed_bytes,
            .kv_bytes_per_token = engine_.info().kv_bytes_per_token,
            .prefix_cache = {.enabled = options_.prefix_cache,
                             .interval = static_cast<size_t>(options_.prefix_interval),
                             .in_content = options_.special_tokens_in_content},
            .restart_device = options_.restart_device,
            .on_warning = [notice](const std::string& what) { notice("warning", what); },
            .on_device = [notice](const char* event, const std::string& what) { notice(event, what); }};
  }

  OpenPtr Find(uint64_t id) const {
    const std::lock_guard lock(mutex_);
    const auto at = open_.find(id);
    return at == open_.end() ? nullptr : at->second;
  }

  Result<uint64_t> Begin(ServiceJob made, EventFn on_event) {
    const auto open = std::make_shared<Open>();
    open->job = made.job;
    open->on_event = std::move(on_event);
    // The job belongs to `open`, so it must not own it.
    made.job->on_output = [this, weak = std::weak_ptr<Open>(open)](std::vector<StepOutput>& outputs) {
      const OpenPtr locked = weak.lock();
      for (StepOutput& output : outputs) {
        if (locked != nullptr) Tell(locked, std::move(output));
      }
    };
    if (scheduler_.device_failed()) {
      const Status health = engine_.health();
      return ResourceExhausted("the device has failed" + (health.ok() ? "" : " (" + health.message() + ")") +
                               "; try again when it is open again");
    }
    {
      const std::lock_guard lock(mutex_);
      if (draining_) return Ending();
      open->id = ++last_id_;
      made.job->id = "service-" + std::to_string(open->id);
      open_.emplace(open->id, open);
    }
    const Status begun = UseKnownForm(api_, made.plan, made.job.get()) ? scheduler_.Submit(made.job)
                                                                       : CompileLater(std::move(made.plan), open);
    if (!begun.ok()) {
      Remove(open);
      return begun;
    }
    const std::lock_guard lock(mutex_);
    open->begins = false;
    return open->id;
  }

  std::unique_ptr<CompileQueue> TakeCompileQueue() {
    const std::lock_guard lock(compile_mutex_);
    return std::move(compile_queue_);
  }

  Status CompileLater(GrammarPlan plan, const OpenPtr& open) {
    const auto compile = [this, plan = std::move(plan), open] {
      const Status begun = Caught([&]() -> Status {
        CompileForm(api_, plan, open->cancelled, open->job.get());
        return scheduler_.Submit(open->job);
      });
      if (!begun.ok()) Fail(open, open->job->cancelled ? Cancelled("the request was cancelled") : begun);
    };
    const std::lock_guard lock(compile_mutex_);
    if (compile_queue_ == nullptr) return Ending();
    if (compile_queue_->Post(compile, open->cancelled)) return {};
    return ResourceExhausted("too many schemas wait to be compiled; try again");
  }

  // Any thread: the request was never in the scheduler.
  void Fail(const OpenPtr& open, const Status& why) {
    events_.Post([this, open, why] {
      StepOutput last;
      last.finish = why.code() == StatusCode::kCancelled ? FinishReason::kCancelled : FinishReason::kError;
      last.error = why;
      Tell(open, std::move(last));
    });
  }

  // ---- On the event thread

  void Tell(const OpenPtr& open, StepOutput output) {
    if (open->ended) return;
    open->ended = output.finish != FinishReason::kNone;
    Event event{.request = open->id,
                .prompt = std::move(output.prompt),
                .tokens = std::move(output.tokens),
                .text = std::move(output.text),
                .deltas = std::move(output.deltas),
                .finish = output.finish,
                .matched_stop = std::move(output.matched_stop),
                .end_id = output.end ? std::optional(output.end->id) : std::nullopt,
                .error = std::move(output.error),
                .counts = output.counts,
                .times = output.times};
    if (event.finish == FinishReason::kCancelled && event.error.ok())
      event.error = Cancelled("the request was cancelled");
    if (open->on_event) open->on_event(event);
    if (!open->ended) return;
    open->on_event = nullptr;
    Remove(open);
  }

  // Requests that lost their last event, because memory ran out.
  void EndOpen() {
    std::vector<OpenPtr> left;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, open] : open_) {
        if (!open->begins) left.push_back(open);  // Submit returns the error of the others
      }
    }
    for (const OpenPtr& open : left) {
      StepOutput last;
      last.finish = FinishReason::kError;
      last.error = Ending();
      Tell(open, std::move(last));
    }
  }

  void Remove(const OpenPtr& open) {
    {
      const std::lock_guard lock(mutex_);
      open_.erase(open->id);
    }
    ended_.notify_all();
  }

  Engine& engine_;
  const ServiceOptions options_;
  const ServerOptions api_options_;
  Metrics metrics_;
  const std::unique_ptr<GrammarCompiler> grammars_;  // null: this build has none

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::unordered_map<uint64_t, OpenPtr> open_;
  uint64_t last_id_ = 0;
  bool draining_ = false;

  std::mutex stop_mutex_;     // one Stop at a time; held while it waits for threads
  std::mutex compile_mutex_;  // guards compile_queue_
  EventThread events_;
  Scheduler scheduler_;
  std::unique_ptr<CompileQueue> compile_queue_;  // null: stopped
  Api api_;
};

}  // namespace

}  // namespace dsv4::server

namespace dsv4 {

class Service::Impl : public server::ServiceCore {
 public:
  using server::ServiceCore::ServiceCore;
};

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Service::~Service() { Stop(); }

Result<std::unique_ptr<Service>> Service::Create(Engine& engine, const Tokenizer& tokenizer,
                                                 const ServiceOptions& options) {
  ServiceOptions checked = options;
  if (checked.kv_budget_bytes == 0) checked.kv_budget_bytes = DefaultKvBudget(engine);
  DSV4_RETURN_IF_ERROR(CheckKvBudget(checked.kv_budget_bytes, engine.info()));
  try {
    auto impl = std::make_unique<Impl>(engine, tokenizer, checked);
    DSV4_RETURN_IF_ERROR(impl->ReadDefaults());
    return std::unique_ptr<Service>(new Service(std::move(impl)));
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) throw;
  }
  return ResourceExhausted("cannot start the service's threads: raise the limits of the process (ulimit -u, -v)");
}

Result<uint64_t> Service::Submit(Request request, EventFn on_event) {
  return impl_->Submit(std::move(request), std::move(on_event));
}
Result<uint64_t> Service::SubmitJson(std::string_view body, EventFn on_event, const std::string& tenant) {
  return impl_->SubmitJson(body, std::move(on_event), tenant);
}
Status Service::Cancel(uint64_t request) { return impl_->Cancel(request); }
void Service::Pause(uint64_t request, bool paused) { impl_->Pause(request, paused); }
ServiceStats Service::Stats() const { return impl_->Stats(); }
bool Service::Drain(double timeout_s) { return impl_->Drain(timeout_s); }
void Service::Stop() { impl_->Stop(); }

int64_t DefaultKvBudget(const Engine& engine) {
  constexpr int64_t kLeast = int64_t{64} << 20, kUnknown = int64_t{8} << 30;
  const int64_t free = engine.free_bytes();
  const ModelInfo& model = engine.info();
  const auto two = static_cast<int64_t>(2 * (static_cast<double>(model.kv_fixed_bytes) +
                                             static_cast<double>(server::kKvPageTokens) * model.kv_bytes_per_token));
  return free == 0 ? kUnknown : std::max({free / 2, kLeast, two});
}

}  // namespace dsv4
