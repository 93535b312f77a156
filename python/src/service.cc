#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "dsv4/service.h"
#include "engine.h"
#include "errors.h"
#include "sampling.h"
#include "service.h"
#include "text.h"
#include "threads.h"

namespace dsv4::python {

using nb::literals::operator""_a;

namespace {

// Events of one request, from the service's thread to Python.
class Channel {
 public:
  ~Channel() {
    if (file_ >= 0) close(file_);
  }

  void Push(const Event& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    changed_.notify_all();
    Signal();
  }

  // Returns whether there is an event, after at most `wait_ms`.
  bool Wait(int wait_ms) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(wait_ms), [&] { return !events_.empty(); });
  }

  std::optional<Event> Take() {
    const std::lock_guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  size_t size() {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

  // Returns an eventfd that can be read after each event, for event loops; -1: there are no more descriptors.
  int File() {
    const std::lock_guard lock(mutex_);
    if (file_ < 0) {
      file_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      if (!events_.empty()) Signal();
    }
    return file_;
  }

 private:
  void Signal() const {
    const uint64_t one = 1;
    if (file_ >= 0 && write(file_, &one, sizeof one) < 0) return;  // full: it can be read already
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  int file_ = -1;
};

// A service on an engine of its own.
class ServiceCore : public Closable {
 public:
  ServiceCore(CorePtr engine, std::shared_ptr<const Tokenizer> tokenizer)
      : engine_(std::move(engine)), tokenizer_(std::move(tokenizer)) {}
  ~ServiceCore() override { Close(); }

  void Start(const ServiceOptions& options) {
    Engine& engine = engine_->GiveToService([this] { CloseService(); });
    Result<std::unique_ptr<Service>> made = Internal("not made");
    {
      const ReleasedGil released;
      made = Service::Create(engine, *tokenizer_, options);
    }
    service_ = Must(std::move(made));
  }

  // The service ends its requests by itself, in Close.
  void AskToStop() override {}
  void Close() override { engine_->Close(); }

  // Calls `call` with the service. With the GIL, which `call` does not have. Throws if the service is closed.
  template <typename Fn>
  auto With(const Fn& call) {
    if (!in_this_process()) RaiseForked("this LLM");
    using Value = decltype(call(*service_));
    std::optional<Value> value;
    {
      const ReleasedGil released;
      const std::shared_lock lock(mutex_);
      if (service_ != nullptr) value = call(*service_);
    }
    if (!value) Raise(InvalidArgument("the LLM is closed: load it again"));
    return std::move(*value);
  }

  // As With, without a value and errors, with or without the GIL.
  template <typename Fn>
  void Tell(const Fn& call) {
    const std::shared_lock lock(mutex_);
    if (service_ != nullptr) call(*service_);
  }

 private:
  void CloseService() {
    // Requests end first, so that threads which wait for them leave.
    Tell([](Service& service) { service.Stop(); });
    const std::unique_lock lock(mutex_);
    service_ = nullptr;
  }

  const CorePtr engine_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_mutex mutex_;  // guards the pointer
  std::unique_ptr<Service> service_;
};
using ServicePtr = std::shared_ptr<ServiceCore>;

struct PyService {
  ServicePtr core;
};

Request ToRequest(const nb::dict& fields) {
  Request request;
  if (fields.contains("prompt")) request.prompt = ToIds(fields["prompt"]);
  if (fields.contains("text")) request.text.text = nb::cast<std::string>(fields["text"]);
  std::vector<std::pair<size_t, size_t>> ranges;
  Take(fields, "ranges", &ranges);
  for (const auto& [begin, end] : ranges) request.text.content_ranges.push_back({begin, end});
  request.sampling = ToSampling(fields);
  Take(fields, "max_tokens", &request.max_tokens);
  Take(fields, "min_tokens", &request.min_tokens);
  Take(fields, "ignore_eos", &request.ignore_eos);
  Take(fields, "stop_ids", &request.stop_ids);
  Take(fields, "stops", &request.stops);
  Take(fields, "include_stop", &request.include_stop);
  Take(fields, "skip_special", &request.skip_special);
  Take(fields, "prompt_logprobs", &request.prompt_logprobs);
  Take(fields, "speculate", &request.speculate);
  Take(fields, "chat", &request.chat);
  Take(fields, "thinking", &request.thinking);
  Take(fields, "thinking_budget", &request.thinking_budget);
  Take(fields, "tools", &request.tools);
  Take(fields, "parallel_calls", &request.parallel_calls);
  Take(fields, "json_schema", &request.json_schema);
  Take(fields, "regex", &request.regex);
  return request;
}

nb::list ToPython(const std::vector<SampledToken>& tokens) {
  nb::list list;
  for (const SampledToken& token : tokens) {
    nb::list top;
    for (const TokenLogprob& t : token.top) top.append(nb::make_tuple(t.id, t.logprob));
    list.append(nb::make_tuple(token.id, token.logprob, top));
  }
  return list;
}

const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    default:
      return "cancelled";
  }
}

// Throws the event's error.
nb::dict ToPython(const Event& event) {
  if (event.finish == FinishReason::kError) Raise(event.error);
  nb::dict dict;
  dict["tokens"] = ToPython(event.tokens);
  dict["prompt"] = ToPython(event.prompt);
  dict["text"] = event.text;
  nb::list deltas;
  for (const OutputDelta& delta : event.deltas)
    deltas.append(nb::make_tuple(NameOf(delta.kind), delta.index, delta.text));
  dict["deltas"] = deltas;
  dict["finish"] = event.finish == FinishReason::kNone ? nb::object(nb::none()) : nb::str(NameOf(event.finish));
  dict["matched_stop"] = event.matched_stop;
  dict["end_id"] = event.end_id ? nb::object(nb::int_(*event.end_id)) : nb::none();
  dict["prompt_tokens"] = event.counts.prompt;
  dict["cached_tokens"] = event.counts.cached;
  dict["completion_tokens"] = event.counts.completion;
  dict["reasoning_tokens"] = event.counts.reasoning;
  dict["drafted_tokens"] = event.counts.drafted;
  return dict;
}

// A request that was submitted. Ends with its last event, or is cancelled when Python drops it.
class Ticket {
 public:
  Ticket(ServicePtr core, std::shared_ptr<Channel> channel, uint64_t id, bool bounded)
      : core_(std::move(core)), channel_(std::move(channel)), id_(id), bounded_(bounded) {}
  Ticket(Ticket&&) = default;
  ~Ticket() {
    if (core_ != nullptr && core_->in_this_process()) Cancel();
  }

  // Returns the next event, or None after the last one.
  nb::object Next() {
    if (!core_->in_this_process()) RaiseForked("this request");
    if (ended_) return nb::none();
    if (!WaitForSignals([this](int wait_ms) { return channel_->Wait(wait_ms); })) throw nb::python_error();
    return Poll();
  }

  // Returns the next event that has come, or None.
  nb::object Poll() {
    if (!core_->in_this_process()) RaiseForked("this request");
    const std::optional<Event> event = channel_->Take();
    if (!event) return nb::none();
    ended_ = event->finish != FinishReason::kNone;
    Pace();
    return ToPython(*event);
  }

  void Cancel() {
    if (ended_) return;
    core_->Tell([this](Service& service) { (void)service.Cancel(id_); });
  }

  bool ended() const { return ended_; }
  int File() const { return channel_->File(); }

 private:
  static constexpr size_t kMostWaiting = 256, kFewWaiting = 64;  // events

  // A request whose reader is slow pauses.
  void Pace() {
    if (!bounded_ || ended_) return;
    const size_t waiting = channel_->size();
    if (paused_ ? waiting > kFewWaiting : waiting < kMostWaiting) return;
    paused_ = !paused_;
    core_->Tell([this](Service& service) { service.Pause(id_, paused_); });
  }

  ServicePtr core_;
  std::shared_ptr<Channel> channel_;
  uint64_t id_;
  bool bounded_, paused_ = false, ended_ = false;
};

Ticket Submit(PyService& self, const nb::dict& fields, bool bounded) {
  ReleaseDeferred();
  Request request = ToRequest(fields);
  const auto channel = std::make_shared<Channel>();
  const uint64_t id = Must(self.core->With([&](Service& service) {
    return service.Submit(std::move(request), [channel](const Event& event) { channel->Push(event); });
  }));
  return {self.core, channel, id, bounded};
}

nb::dict Stats(PyService& self) {
  const ServiceStats stats = self.core->With([](Service& service) { return service.Stats(); });
  nb::dict dict;
  dict["open"] = stats.open;
  dict["running"] = stats.running;
  dict["waiting"] = stats.waiting;
  dict["kv_used_bytes"] = stats.kv_used_bytes;
  dict["kv_kept_bytes"] = stats.kv_kept_bytes;
  dict["kv_budget_bytes"] = stats.kv_budget_bytes;
  dict["prompt_tokens"] = stats.prompt_tokens;
  dict["generated_tokens"] = stats.generated_tokens;
  dict["prefix_queries"] = stats.prefix_queries;
  dict["prefix_hits"] = stats.prefix_hits;
  return dict;
}

void CloseService(PyService& self) {
  if (!self.core->in_this_process()) return;
  const ReleasedGil released;
  self.core->Close();
}

PyService MakeService(const PyEngine& engine, const PyTokenizer& tokenizer, int64_t kv_budget, int64_t max_running,
                      int64_t max_waiting, bool prefix_cache) {
  ServiceOptions options;
  options.kv_budget_bytes = kv_budget;
  options.max_running = max_running;
  options.max_waiting = max_waiting;
  options.prefix_cache = prefix_cache;
  auto core = MakeClosable<ServiceCore>(engine.core, tokenizer.tokenizer);
  core->Start(options);
  return {std::move(core)};
}

}  // namespace

void BindService(nb::module_& m) {
  nb::class_<Ticket>(m, "Ticket", "A request that was submitted. LLM uses it.")
      .def("next", &Ticket::Next, nb::sig("def next(self) -> dict[str, typing.Any] | None"),
           "Waits for the next event. None: the last one has been returned. Throws the error of the request.")
      .def("poll", &Ticket::Poll, nb::sig("def poll(self) -> dict[str, typing.Any] | None"),
           "Returns an event that has come, or None.")
      .def("cancel", &Ticket::Cancel, "Ends the request. Its last event has the finish 'cancelled'.")
      .def_prop_ro("ended", &Ticket::ended, "Whether the last event has been returned.")
      .def("fileno", &Ticket::File, "A descriptor that can be read when events have come; -1: none is left.");
  nb::class_<PyService>(m, "Service", "Continuous batching on an engine of its own. LLM uses it.")
      .def(
          "__init__",
          [](PyService* self, const PyEngine& engine, const PyTokenizer& tokenizer, int64_t kv_budget,
             int64_t max_running, int64_t max_waiting, bool prefix_cache) {
            new (self) PyService(MakeService(engine, tokenizer, kv_budget, max_running, max_waiting, prefix_cache));
          },
          "engine"_a, "tokenizer"_a, "kv_budget"_a = 0, "max_running"_a = 64, "max_waiting"_a = 256,
          "prefix_cache"_a = true)
      .def("submit", &Submit, "request"_a, "bounded"_a = false,
           nb::sig("def submit(self, request: dict[str, typing.Any], bounded: bool = False) -> Ticket"),
           "Adds a request. bounded: it pauses while 256 events wait for their reader.")
      .def("stats", &Stats, nb::sig("def stats(self) -> dict[str, int]"), "Numbers of requests, tokens and bytes.")
      .def("close", &CloseService, "Ends all requests and frees the model.");
}

}  // namespace dsv4::python
