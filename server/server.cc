// The server as a whole: routes, keys, health, logs, start and stop.
#include "dsv4/server.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <unistd.h>

#include "dsv4/service_manager.h"
#include "dsv4/version.h"
#include "server/announce.h"
#include "server/api/api.h"
#include "server/api/response_store.h"
#include "server/api/routes.h"
#include "server/base/file_watch.h"
#include "server/base/free_memory.h"
#include "server/base/log.h"
#include "server/base/memory_reserve.h"
#include "server/base/sha256.h"
#include "server/base/workers.h"
#include "server/cache/kv_events.h"
#include "server/http/access.h"
#include "server/http/http.h"
#include "server/http/keys.h"
#include "server/observe/request_log.h"
#include "server/observe/request_note.h"
#include "server/observe/spans.h"
#include "server/page/page.h"
#include "server/start.h"
#include "server/structured/compile_queue.h"
#include "server/structured/grammar.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxQueuedReads = 1024;  // requests that wait to be read
constexpr size_t kShortBody = size_t{128}
                              << 10;  // takes about 50 ms to read; such requests never wait for long ones only
constexpr int kCompileThreads = 2;
constexpr size_t kMaxQueuedCompiles = 256;
constexpr size_t kMaxIdleBody = size_t{64} << 10;  // for requests whose route takes no body
// For destructors after memory ran out: JSON values of two readers need 16 bytes or more each.
constexpr size_t kMemoryReserve = size_t{128} << 20;
constexpr std::chrono::milliseconds kDrainPoll{50};
constexpr std::chrono::milliseconds kLastReplies{200};  // to send error replies before the end
constexpr std::chrono::seconds kStopTime{10};           // for the engine's thread to finish after a stop was requested
constexpr double kRestartStall = 300;                   // seconds without progress while a device is being reopened
constexpr std::chrono::milliseconds kFileWatch{5000};
constexpr std::chrono::milliseconds kGiveBack{5000};  // interval between two attempts to return free memory

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// The I/O thread answers these paths at once.
bool IsQuick(std::string_view path) {
  const RouteEntry* route = FindRoute(path, "GET");
  return route != nullptr && route->serve == nullptr;
}

class Server {
 public:
  // ---- Any thread, after Start

  int port() const { return http_->port(); }
  int metrics_port() const { return http_->metrics_port(); }
  void EndWithin(double seconds) {
    http_->Post([this, seconds] { BeginDrain(seconds, {{"busy", static_cast<int64_t>(http_->num_busy())}}); });
  }

  // ---- The thread that made it

  Server(Engine& engine, const Tokenizer& tokenizer, const ServerOptions& options)
      : engine_(engine),
        tokenizer_(tokenizer),
        options_(options),
        log_(options.log_json, 2, options.on_log),
        metrics_(options.model_name, options.num_ranks) {}

  // Opens the ports and starts all threads but the I/O thread. `owns_process`: the server handles the signals of the
  // process, and ends it when its threads cannot be ended.
  Status Start(bool owns_process) {
    owns_process_ = owns_process;
    DSV4_RETURN_IF_ERROR(CheckKvBudget(options_.kv_budget_bytes, engine_.info()));
    DSV4_RETURN_IF_ERROR(Listen());
    if (owns_process) DSV4_RETURN_IF_ERROR(CatchSignals());
    if (owns_process) FindManager();
    DSV4_RETURN_IF_ERROR(OpenSpans());
    DSV4_RETURN_IF_ERROR(OpenKvEvents());
    DSV4_ASSIGN_OR_RETURN(folder_lock_, TakeDiskFolder(options_));
    const std::string fingerprint = Fingerprint();  // before the scheduler, which counts everything as traffic
    scheduler_.emplace(engine_, tokenizer_, MakeSchedulerOptions(), metrics_,
                       [this](std::function<void()> call) { http_->Post(std::move(call)); });
    DSV4_RETURN_IF_ERROR(MakeApi(fingerprint));
    workers_.emplace(2, 1, kMaxQueuedReads);
    TellDisk();
    file_watch_.emplace(kFileWatch, [this](const std::string& path) {
      log_.Line(LogLevel::kError, "model-changed",
                {{"file", path}, {"what", "the file was changed while the server uses it; restart the server"}});
    });
    Announce(log_, options_, engine_.info(), tokenizer_, *http_);
    if (const int64_t free = engine_.free_bytes(); free > 0 && options_.kv_budget_bytes > free) {
      Warn("--kv-budget is " + std::to_string(options_.kv_budget_bytes) + " bytes but only " + std::to_string(free) +
           " are free: KV memory above that makes requests fail, or the system kills the process");
    }
    return {};
  }

  // The I/O thread: serves until the end, whose reason it returns.
  Status Run() {
    http_->Post([this] { TellReady(); });
    http_->Run();

    stopped_ = true;
    workers_.reset();
    compile_queue_.reset();
    scheduler_->Stop();
    http_->Close();
    log_.Line("stopped", {});
    return fatal_;
  }

 private:
  // ---- Start

  Status Listen() {
    HttpOptions http = MakeHttpOptions(options_);
    http.added_headers = [this](std::string_view origin) { return access_->CorsHeaders(origin); };
    DSV4_ASSIGN_OR_RETURN(http_, HttpServer::Listen(
                                     http, [this](const HttpRequest& head) { return Admit(head); },
                                     [this](ExchangePtr e) { Handle(std::move(e)); },
                                     [this](const HttpRequest& r, const HttpDone& d) { Done(r, d); }));
    access_.emplace(AccessOptions{.api_keys = options_.api_keys,
                                  .cors_origins = options_.cors_origins,
                                  .check_host = http_->is_loopback() || !options_.allowed_hosts.empty(),
                                  .allowed_hosts = AllowedHosts(),
                                  .key_guesses = options_.key_guesses});
    return {};
  }

  std::vector<std::string> AllowedHosts() const {
    std::vector<std::string> hosts = options_.allowed_hosts;
    hosts.push_back(options_.host);
    return hosts;
  }

  // Called early, so that no signal is lost while the rest starts. Signals are handled when Run begins.
  Status CatchSignals() {
    DSV4_RETURN_IF_ERROR(http_->OnSignal([this](int signal) { OnSignal(signal); }));
    if (options_.interrupted && options_.interrupted()) http_->Post([this] { OnSignal(SIGTERM); });
    return {};
  }

  Status OpenSpans() {
    if (options_.otlp_endpoint.empty()) return {};
    DSV4_ASSIGN_OR_RETURN(spans_, SpanExporter::Create(options_.otlp_endpoint, options_.model_name,
                                                       [this](const std::string& what) { Warn(what); }));
    return {};
  }

  Status OpenKvEvents() {
    if (options_.kv_events_port < 0) return {};
    DSV4_ASSIGN_OR_RETURN(kv_publisher_, KvPublisher::Bind(options_.host, options_.kv_events_port));
    const std::string own = "kv@" + options_.host + ":" + std::to_string(http_->port()) + "@" + options_.model_name;
    const std::string topic = options_.kv_events_topic.empty() ? own : options_.kv_events_topic;
    kv_blocks_.emplace([this, topic](const Json& events) { kv_publisher_->Send(topic, events); });
    kv_blocks_->Cleared();  // clears what readers know of an earlier server
    log_.Line("kv-events", {{"port", int64_t{kv_publisher_->port()}}, {"topic", topic}});
    return {};
  }

  // Logs what the prefix cache found in its folder.
  void TellDisk() const {
    if (options_.kv_disk.empty()) return;
    Gauges gauges;
    scheduler_->Fill(&gauges);
    log_.Line("kv-disk",
              {{"folder", options_.kv_disk}, {"cuts", gauges.cuts_on_disk}, {"size", LogBytes{gauges.kv_disk_bytes}}});
  }

  SchedulerOptions MakeSchedulerOptions() {
    return {.max_running = options_.max_running,
            .max_waiting = options_.max_waiting,
            .several_tenants = options_.api_keys.size() > 1 && !options_.share_cache,
            .prefill_chunk = options_.prefill_chunk,
            .max_gap_s = options_.max_gap_s,
            .target_ttft_s = options_.target_ttft_s,
            .gather_s = options_.gather_s,
            .kv_budget_bytes = options_.kv_budget_bytes,
            .kv_fixed_bytes = engine_.info().kv_fixed_bytes,
            .kv_bytes_per_token = engine_.info().kv_bytes_per_token,
            .prefix_cache = {.enabled = options_.prefix_cache,
                             .interval = static_cast<size_t>(options_.prefix_interval),
                             .disk = options_.kv_disk,
                             .disk_bytes = options_.kv_disk_bytes,
                             .in_content = options_.special_tokens_in_content,
                             .on_disk_error = [this](const std::string& what) { LogError("kv-disk", what); },
                             .watcher = kv_blocks_ ? &*kv_blocks_ : nullptr},
            .count_experts_file = options_.count_experts_file,
            .counted_experts = options_.counted_experts,
            .trace_steps = options_.trace_steps,
            .restart_device = options_.restart_device,
            .on_warning = [this](const std::string& what) { Warn(what); },
            .on_device =
                [this](const char* event, const std::string& what) {
                  log_.Line(what.empty() ? LogLevel::kInfo : LogLevel::kError, event, {{"what", what}});
                },
            .on_fatal = [this](const Status& status) { http_->Post([this, status] { OnFatal(status); }); }};
  }

  Status MakeApi(const std::string& fingerprint) {
    grammars_ = GrammarCompiler::Create(tokenizer_, engine_.info().vocab_size, engine_.info().eos_token_ids);
    compile_queue_.emplace(kCompileThreads, kMaxQueuedCompiles);
    if (options_.store_responses_bytes > 0) {
      DSV4_ASSIGN_OR_RETURN(auto folder, OpenResponsesFolder(options_));
      responses_.emplace(static_cast<size_t>(options_.store_responses_bytes), std::move(folder));
    }
    const auto sampling = ReadDefaultSampling(options_.model_dir);
    if (!sampling.ok()) Warn(sampling.status().message());
    api_.emplace(Api{.options = options_,
                     .model = engine_.info(),
                     .tokenizer = tokenizer_,
                     .scheduler = *scheduler_,
                     .metrics = metrics_,
                     .grammars = grammars_.get(),
                     .default_sampling = sampling.ok() ? *sampling : SamplingParams{},
                     .fingerprint = fingerprint,
                     .tenants = TenantsOf(options_.api_keys, options_.share_cache),
                     .compile_queue = &*compile_queue_,
                     .responses = responses_ ? &*responses_ : nullptr,
                     .created = UnixTime(),
                     .on_failure = [this](const std::string& id, const std::string& what) {
                       log_.Line(LogLevel::kError, "failed", {{"id", id}, {"what", what}});
                     }});
    return {};
  }

  void Warn(const std::string& what) const { log_.Line(LogLevel::kWarning, "warning", {{"what", what}}); }
  void LogError(const char* event, const std::string& what) const {
    log_.Line(LogLevel::kError, event, {{"what", what}});
  }

  // Two replies to the same request with the same fingerprint come from the same weights and the same program, so seeds
  // give the same text.
  std::string Fingerprint() {
    const auto numerics = engine_.SnapshotFingerprint();
    return "fp_" + Sha256Hex(GetBuildInfo().commit + "\n" + (numerics.ok() ? *numerics : options_.model_name), 12);
  }

  // ---- On the I/O thread

  // Decides from a request's header, before its body is read: by its host, origin, key, route and method.
  HttpVerdict Admit(const HttpRequest& given) {
    HttpRequest head = given;
    head.path = RoutePath(given.path);
    const bool anthropic = head.path.starts_with("/v1/messages") || head.path.starts_with("/anthropic/");
    const ErrorForm form = anthropic ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
    std::string allow;
    const std::optional<ApiError> error = WhyRefused(head, &allow);
    HttpVerdict verdict{.note = MakeNote(head), .path = head.path};
    if (error) {
      verdict.refusal = ErrorReply(form, *error, head.id);
      if (!allow.empty()) verdict.refusal->headers.emplace_back("Allow", allow);
    } else {
      verdict.max_body_bytes = head.method == "POST" ? options_.max_body_bytes : kMaxIdleBody;
    }
    return verdict;
  }

  std::shared_ptr<RequestNote> MakeNote(const HttpRequest& head) const {
    auto note = std::make_shared<RequestNote>();
    note->trace = ReadTraceParent(head.Header("traceparent"));
    if (spans_ != nullptr && note->trace.trace_id.empty()) note->trace = NewTrace();
    if (const auto key = FindKey(options_.api_keys, head)) note->key = LabelOf(options_.key_labels, *key);
    return note;
  }

  // Sets `allow` to the methods of the route if the method is wrong.
  std::optional<ApiError> WhyRefused(const HttpRequest& head, std::string* allow) {
    const auto wrong_method = [&](std::string_view takes) {
      *allow = takes.starts_with("GET") ? "GET, HEAD" + std::string(takes.substr(3)) : std::string(takes);
      return ApiError(405, head.path + " accepts only " + std::string(takes));
    };
    const bool get = head.method == "GET" || head.method == "HEAD";
    const bool open = head.path.starts_with("/health") || (head.metrics && head.path == "/metrics");
    if (open) return get ? std::nullopt : std::optional(wrong_method("GET"));
    if (head.metrics) return ApiError(404, "this port serves only /metrics and /health; use the server's main port");
    if (head.method == "OPTIONS" && !options_.cors_origins.empty()) return std::nullopt;
    if (head.reserved) return Unavailable("too many connections", 1);
    if (auto error = access_->Check(head, Clock::now())) return error;
    if (IsQuick(head.path)) return get ? std::nullopt : std::optional(wrong_method("GET"));
    if (draining_) return Unavailable("the server is shutting down", 5);
    const std::string_view method = get ? "GET" : std::string_view(head.method);
    const RouteEntry* route = FindRoute(head.path, method);
    if (route == nullptr) {
      const std::string meant = PathMeantBy(head.path);
      return ApiError(404, "there is no route " + head.path + "; " +
                               (meant.empty() ? "" : "did you mean " + meant + "? ") + "/docs lists the routes");
    }
    if (route->method != method) return wrong_method(MethodsOf(head.path));
    return std::nullopt;
  }

  static ApiError Unavailable(const std::string& why, int retry_after_s) {
    ApiError error(503, why);
    error.retry_after_s = retry_after_s;
    return error;
  }

  // Handles a request that was admitted.
  void Handle(const ExchangePtr& exchange) {
    const HttpRequest& request = exchange->request();
    if (request.path.starts_with("/health")) return Health(*exchange);
    if (request.method == "OPTIONS") return exchange->Respond(204, "", "");
    if (IsQuick(request.path)) return Quick(*exchange);
    const RouteEntry& route = *FindRoute(request.path, request.method == "HEAD" ? "GET" : request.method);
    if (route.method == "POST") TellThroughput();
    const auto length = request.body.size() <= kShortBody ? Workers::Length::kShort : Workers::Length::kLong;
    if (workers_->Post(length, [this, &route, exchange] { Serve(route, exchange); })) return;
    ApiError error(429, "too many requests wait to be read; try again");
    error.retry_after_s = 1;
    RespondError(*exchange, route.form, error);
  }

  Gauges ReadGauges() const {
    Gauges gauges;
    scheduler_->Fill(&gauges);
    gauges.draining = draining_;
    gauges.connections = static_cast<int64_t>(http_->num_connections());
    gauges.body_bytes = static_cast<int64_t>(http_->body_bytes());
    gauges.log_lines_dropped = static_cast<int64_t>(log_.num_dropped());
    const SpanExporter::Counts spans = spans_ == nullptr ? SpanExporter::Counts{} : spans_->counts();
    gauges.spans_sent = spans.sent;
    gauges.spans_dropped = spans.dropped;
    return gauges;
  }

  // Logs the throughput while there is work.
  void TellThroughput() {
    if (tells_throughput_ || options_.log_interval_s <= 0) return;
    tells_throughput_ = true;
    throughput_.Begin();
    TellThroughputLater();
  }
  void TellThroughputLater() {
    http_->PostAfter(Milliseconds(options_.log_interval_s), [this] {
      if (stopped_) return;
      tells_throughput_ = throughput_.Tell(ReadGauges());
      if (tells_throughput_) TellThroughputLater();
    });
  }

  void Quick(Exchange& exchange) {
    const std::string& path = exchange.request().path;
    if (path == "/metrics") {
      return exchange.Respond(200, "text/plain; version=0.0.4; charset=utf-8", metrics_.Render(ReadGauges()));
    }
    if (path == "/") {
      return exchange.Respond(200, "text/html; charset=utf-8", std::string(ChatPage()),
                              {{"Content-Security-Policy", std::string(ChatPagePolicy())},
                               {"X-Content-Type-Options", "nosniff"},
                               {"Cache-Control", "no-cache"}});
    }
    exchange.Respond(204, "", "");
  }

  bool IsStuck() const {
    const bool failed = scheduler_->device_failed();
    const double stall = failed ? std::max(options_.stall_timeout_s, kRestartStall) : options_.stall_timeout_s;
    return options_.stall_timeout_s > 0 && scheduler_->SecondsStuck() > stall;
  }

  // Live: a restart would not help. Ready: the server takes new requests.
  void Health(Exchange& exchange) {
    const bool changed = file_watch_->changed();
    const bool failed = scheduler_->device_failed();
    const bool stuck = IsStuck();
    const bool live = !stuck, ready = !stuck && !draining_ && !changed && !failed;
    const std::string& path = exchange.request().path;
    const bool good = path == "/health/live" ? live : ready;
    if (path != "/health" && path != "/health/live" && path != "/health/ready") {
      return RespondError(exchange, ErrorForm::kOpenAi, ApiError(404, "there is no route " + path));
    }
    const char* status = stuck       ? "stuck"
                         : failed    ? "device failed"
                         : changed   ? "model changed"
                         : draining_ ? "draining"
                                     : "ok";
    exchange.Respond(good ? 200 : 503, "application/json",
                     Dump({{"status", status}, {"live", live}, {"ready", ready}}));
  }

  // Returns free memory to the system some time after a request, which may have freed much.
  void GiveBackLater() {
    if (std::exchange(gives_back_, true)) return;
    http_->PostAfter(kGiveBack, [this] {
      gives_back_ = false;
      if (!stopped_) (void)workers_->Post(Workers::Length::kShort, [this] { free_memory_.GiveBack(); });
    });
  }

  void Done(const HttpRequest& request, const HttpDone& done) {
    const RouteEntry* route = FindRoute(request.path, request.method);
    metrics_.AddHttp(route != nullptr ? std::string(route->path) : "other", done.status);
    if (request.path.starts_with("/health") || request.path == "/metrics") return;
    GiveBackLater();
    LogRequest(log_, request, done);
    if (spans_ != nullptr) spans_->Add(request, done);
  }

  // ---- The service manager

  // A manager that cannot be reached is no reason not to serve.
  void FindManager() {
    auto manager = ServiceManager::FromEnvironment();
    if (manager.ok())
      manager_ = std::move(*manager);
    else
      Warn(manager.status().message());
  }
  void TellReady() {
    if (!manager_ || draining_) return;
    manager_->Ready("serving " + options_.model_name + " on port " + std::to_string(http_->port()));
    TellAlive();
  }
  // A step that hangs ends the messages: the manager restarts the service.
  void TellAlive() {
    const std::chrono::milliseconds interval = manager_->alive_interval();
    if (interval.count() == 0 || stopped_) return;
    if (!IsStuck()) manager_->Alive();
    http_->PostAfter(interval, [this] { TellAlive(); });
  }
  void TellStopping(double drain_s, const std::string& why) const {
    if (!manager_) return;
    // The drain, the last step, saving, and the last replies.
    const std::chrono::seconds longest = std::chrono::seconds(static_cast<int64_t>(drain_s)) + kStopTime + kSaveTime +
                                         kStopTime + std::chrono::seconds(10);
    manager_->Stopping(longest, why);
  }

  // ---- Stop

  void OnSignal(int signal) {
    BeginDrain(options_.drain_timeout_s,
               {{"signal", int64_t{signal}}, {"busy", static_cast<int64_t>(http_->num_busy())}});
  }
  // A second call may only shorten the time.
  void BeginDrain(double seconds, std::initializer_list<LogField> fields) {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (stopped_) return;
    if (std::exchange(draining_, true)) {
      drain_end_ = std::min(drain_end_, end);
      return;
    }
    drain_end_ = end;
    TellStopping(seconds, "finishing the requests");
    log_.Line("draining", fields);
    http_->Drain();
    scheduler_->Drain();
    WaitUntilDrained();
  }
  void WaitUntilDrained() {
    const auto busy = static_cast<int64_t>(http_->num_busy());
    if (busy > 0 && Clock::now() <= drain_end_) return http_->PostAfter(kDrainPoll, [this] { WaitUntilDrained(); });
    if (busy > 0) log_.Line(LogLevel::kWarning, "stopping", {{"reason", "drain timeout"}, {"busy", busy}});
    scheduler_->BeginStop();
    WaitUntilStopped(Scheduler::Activity::kSteps, Clock::now() + kStopTime);
  }
  // /health still answers while this waits. The engine's thread may be in a GPU step that never ends.
  void WaitUntilStopped(Scheduler::Activity activity, Clock::time_point end) {
    const Scheduler::Activity now = scheduler_->activity();
    if (now == Scheduler::Activity::kNone) {  // its last outputs (errors) are queued
      return http_->num_busy() == 0 ? http_->Stop() : http_->PostAfter(kLastReplies, [this] { http_->Stop(); });
    }
    if (now == Scheduler::Activity::kSave && activity != now) end = Clock::now() + kSaveTime + kStopTime;
    if (Clock::now() > end) return GiveUp(now);
    http_->PostAfter(kDrainPoll, [this, now, end] { WaitUntilStopped(now, end); });
  }
  // Threads that hang cannot be joined, so a process of the server ends at once. Another process waits for them.
  void GiveUp(Scheduler::Activity stuck) {
    log_.Line(LogLevel::kError, "stuck",
              {{"what", stuck == Scheduler::Activity::kRestart ? "reopening the device"
                        : stuck == Scheduler::Activity::kSave  ? "writing the prefix cache to --kv-disk"
                                                               : "a step of the engine"},
               {"seconds", Rounded(scheduler_->SecondsStuck(), 1)}});
    if (!owns_process_) return WaitUntilStopped(stuck, Clock::now() + kStopTime);
    http_->PostAfter(kLastReplies, [] { ::_exit(1); });
  }

  // The device is lost. The queued outputs are errors, which clients still get.
  void OnFatal(const Status& status) {
    fatal_ = status;
    draining_ = true;
    TellStopping(0, "failed: " + status.message());
    log_.Line(LogLevel::kError, "stopping", {{"reason", status.message()}});
    http_->PostAfter(kLastReplies, [this] { http_->Stop(); });
  }

  // ---- On a worker

  void Serve(const RouteEntry& route, const ExchangePtr& exchange) const {
    try {
      try {
        route.serve(*api_, exchange);
      } catch (const ApiError& error) {
        RespondError(*exchange, route.form, error);
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& error) {
        log_.Line(LogLevel::kError, "error", {{"id", exchange->request().id}, {"what", error.what()}});
        RespondError(*exchange, route.form, ApiError(500, std::string("internal error: ") + error.what()));
      }
      exchange->DropBody();
    } catch (const std::bad_alloc&) {
      exchange->DropBody();
      exchange->OutOfMemory();
      RefillMemoryReserve();
      LogError("error", "out of memory while reading a request; the client got a 503");
    }
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const ServerOptions& options_;
  const Log log_;
  Metrics metrics_;
  bool stopped_ = false;  // pending timers check it and do nothing
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<FolderLock> folder_lock_;
  std::unique_ptr<KvPublisher> kv_publisher_;
  std::optional<KvBlocks> kv_blocks_;
  std::optional<Scheduler> scheduler_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::optional<ResponseStore> responses_;
  std::optional<Api> api_;
  std::optional<CompileQueue> compile_queue_;
  std::optional<ServiceManager> manager_;
  FreeMemory free_memory_;
  std::optional<Workers> workers_;
  std::optional<Access> access_;
  std::optional<FileWatch> file_watch_;
  std::unique_ptr<SpanExporter> spans_;  // null: spans are not exported
  ThroughputLog throughput_{log_, metrics_};
  bool owns_process_ = false;
  bool tells_throughput_ = false, gives_back_ = false, draining_ = false;
  Status fatal_;  // why the server ends without a signal
  Clock::time_point drain_end_;
};

}  // namespace

}  // namespace dsv4::server

namespace dsv4 {

namespace {

template <typename Call>
Status WithThreads(const Call& call) {
  try {
    return call();
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) throw;
  }
  return ResourceExhausted("cannot start the server's threads: raise the limits of the process (ulimit -u, -v)");
}

ServerOptions WithDefaults(ServerOptions options, const Engine& engine) {
  if (options.model_name.empty()) options.model_name = "dsv4";
  if (options.kv_budget_bytes == 0) options.kv_budget_bytes = DefaultKvBudget(engine);
  return options;
}

}  // namespace

Status Serve(Engine& engine, const Tokenizer& tokenizer, const ServerOptions& options) {
  return WithThreads([&]() -> Status {
    server::KeepMemoryReserve(server::kMemoryReserve);
    server::Server server(engine, tokenizer, options);
    DSV4_RETURN_IF_ERROR(server.Start(/*owns_process=*/true));
    return server.Run();
  });
}

class HttpServer::Impl {
 public:
  Impl(Engine& engine, const Tokenizer& tokenizer, const ServerOptions& options)
      : options_(WithDefaults(options, engine)), server_(engine, tokenizer, options_) {}
  ~Impl() {
    if (thread_.joinable()) thread_.join();
  }

  Status Start() {
    DSV4_RETURN_IF_ERROR(server_.Start(/*owns_process=*/false));
    thread_ = std::thread([this] {
      const Status status = server_.Run();
      const std::lock_guard lock(mutex_);
      ended_ = status;
      changed_.notify_all();
    });
    return {};
  }

  server::Server& server() { return server_; }
  Status Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_.has_value(); });
    return *ended_;
  }
  double drain_timeout_s() const { return options_.drain_timeout_s; }

 private:
  const ServerOptions options_;
  server::Server server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Status> ended_;
  std::thread thread_;  // last: it uses all of the above
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { Stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(Engine& engine, const Tokenizer& tokenizer,
                                                      const ServerOptions& options) {
  std::unique_ptr<Impl> impl;
  DSV4_RETURN_IF_ERROR(WithThreads([&]() -> Status {
    impl = std::make_unique<Impl>(engine, tokenizer, options);
    return impl->Start();
  }));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->server().port(); }
int HttpServer::metrics_port() const { return impl_->server().metrics_port(); }
void HttpServer::Drain(double timeout_s) {
  impl_->server().EndWithin(std::min(timeout_s < 0 ? impl_->drain_timeout_s() : timeout_s, 1e9));
}
void HttpServer::Stop() {
  impl_->server().EndWithin(0);
  (void)impl_->Wait();
}
Status HttpServer::Wait() { return impl_->Wait(); }

}  // namespace dsv4
