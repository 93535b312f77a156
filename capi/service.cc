// Services and HTTP servers.
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "handles.h"

using namespace dsv4;        // NOLINT: these functions are the C form of that namespace
using namespace dsv4::capi;  // NOLINT

static_assert(DSV4_RUNNING == static_cast<int>(FinishReason::kNone));
static_assert(DSV4_STOP == static_cast<int>(FinishReason::kStop));
static_assert(DSV4_LENGTH == static_cast<int>(FinishReason::kLength));
static_assert(DSV4_TOOL_CALLS == static_cast<int>(FinishReason::kToolCalls));
static_assert(DSV4_ABORTED == static_cast<int>(FinishReason::kCancelled));
static_assert(DSV4_FAILED == static_cast<int>(FinishReason::kError));

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxOptions = size_t{1} << 20;  // bytes of a server's options

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string DeltasOf(const std::vector<OutputDelta>& deltas) {
  Json list = Json::array();
  for (const OutputDelta& d : deltas) {
    Json delta = {{"type", NameOf(d.kind)}};
    if (d.index >= 0) delta["index"] = d.index;
    delta["text"] = d.text;
    list.push_back(std::move(delta));
  }
  return Dump(list);
}

// Calls the callback with the C form of an event.
int Tell(const Event& event, dsv4_event_fn call, void* user) {
  size_t num_top = 0;
  for (const SampledToken& token : event.tokens) num_top += token.top.size();
  std::vector<dsv4_logprob> top(num_top);
  std::vector<dsv4_token> tokens;
  for (size_t at = 0; const SampledToken& token : event.tokens) {
    tokens.push_back(TokenOf(token, std::span(top).subspan(at, token.top.size())));
    at += token.top.size();
  }
  const std::string deltas = DeltasOf(event.deltas);
  const dsv4_event out{.size = sizeof(out),
                       .request = event.request,
                       .text = event.text.data(),
                       .text_length = event.text.size(),
                       .deltas_json = deltas.c_str(),
                       .deltas_length = deltas.size(),
                       .tokens = tokens.data(),
                       .num_tokens = tokens.size(),
                       .finish = static_cast<int32_t>(event.finish),
                       .error = static_cast<dsv4_status>(event.error.code()),
                       .error_line = event.error.message().c_str(),
                       .matched_stop = event.matched_stop.c_str(),
                       .prompt_tokens = event.counts.prompt,
                       .cached_tokens = event.counts.cached,
                       .completion_tokens = event.counts.completion,
                       .reasoning_tokens = event.counts.reasoning};
  return call(&out, user);
}

ServiceOptions OptionsOf(const dsv4_service_options& o) {
  ServiceOptions options;
  if (o.model_dir != nullptr) {
    options.model_dir = o.model_dir;
    options.dialect = DetectDialect(o.model_dir);
  }
  if (o.max_running != 0) options.max_running = o.max_running;
  if (o.max_waiting != 0) options.max_waiting = o.max_waiting;
  if (o.prefill_chunk != 0) options.prefill_chunk = o.prefill_chunk;
  if (o.max_gap_s != 0) options.max_gap_s = std::max(o.max_gap_s, 0.0);
  options.kv_budget_bytes = o.kv_budget_bytes;
  options.prefix_cache = o.no_prefix_cache == 0;
  options.restart_device = o.no_restart == 0;
  if (o.on_notice != nullptr) {
    options.on_notice = [call = o.on_notice, user = o.user](std::string_view event, const std::string& line) {
      call(std::string(event).c_str(), line.c_str(), user);
    };
  }
  return options;
}

// Throws Json::exception for another type; the library's own get() takes true for 1.
template <typename T>
void Get(const Json& value, T* out) {
  if (!std::is_same_v<T, bool> && std::is_arithmetic_v<T> && !value.is_number_integer())
    throw Json::type_error::create(302, "not a whole number", &value);
  value.get_to(*out);
}

// Reads one member of a server's options. Returns false if there is no such option.
bool ReadOption(const std::string& name, const Json& value, ServerOptions* o) {
  const std::pair<const char*, std::function<void()>> options[] = {
      {"host", [&] { Get(value, &o->host); }},
      {"port", [&] { Get(value, &o->port); }},
      {"model_dir", [&] { Get(value, &o->model_dir); }},
      {"model_name", [&] { Get(value, &o->model_name); }},
      {"api_keys", [&] { Get(value, &o->api_keys); }},
      {"max_running", [&] { Get(value, &o->max_running); }},
      {"max_waiting", [&] { Get(value, &o->max_waiting); }},
      {"kv_budget_bytes", [&] { Get(value, &o->kv_budget_bytes); }},
      {"prefix_cache", [&] { Get(value, &o->prefix_cache); }},
      {"default_thinking", [&] { Get(value, &o->default_thinking); }},
      {"log", [&] {
         bool logs = false;
         Get(value, &logs);
         if (logs) o->on_log = {};
       }}};
  for (const auto& [option, read] : options) {
    if (name != option) continue;
    read();
    return true;
  }
  return false;
}

ServerOptions ReadOptions(std::string_view text) {
  ServerOptions options;
  options.on_log = [](std::string_view) {};
  if (text.empty()) return options;
  if (text.size() > kMaxOptions) Refuse("options_json has " + std::to_string(text.size()) + " bytes");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) Refuse("options_json is not a JSON object");
  for (const auto& [name, value] : json.items()) {
    bool known = false;
    try {
      known = ReadOption(name, value, &options);
    } catch (const Json::exception&) {
      Refuse("options_json: " + name + " has another type than it must have");
    }
    if (!known) Refuse("options_json: there is no option " + name + "; dsv4.h lists them");
  }
  if (!options.model_dir.empty()) options.dialect = DetectDialect(options.model_dir);
  if (options.port < 0 || options.port > 65535) Refuse("options_json: port is " + std::to_string(options.port));
  return options;
}

}  // namespace

extern "C" {

dsv4_status dsv4_service_new(dsv4_engine* engine, const dsv4_tokenizer* tokenizer, const dsv4_service_options* options,
                             dsv4_service** service) {
  return Guard([&]() -> Status {
    const dsv4_engine& e = Use(engine, "engine");
    const dsv4_tokenizer& t = Use(tokenizer, "tokenizer");
    Out(service, "service");
    auto made = std::make_unique<dsv4_service>();
    made->engine = e.engine;
    made->tokenizer = t.tokenizer;
    DSV4_ASSIGN_OR_RETURN(made->service, Service::Create(*e.engine, *t.tokenizer, OptionsOf(Read(options, "options"))));
    *service = made.release();
    return {};
  });
}

void dsv4_service_free(dsv4_service* service) { Free(service); }

dsv4_status dsv4_submit(dsv4_service* service, const char* request_json, size_t length, dsv4_event_fn on_event,
                        void* user, uint64_t* request) {
  return Guard([&]() -> Status {
    Service* s = Use(service, "service").service.get();
    Out(request, "request");
    if (on_event == nullptr) Refuse("on_event is NULL");
    DSV4_ASSIGN_OR_RETURN(
        *request, s->SubmitJson(TextIn(request_json, length, "request_json"), [s, on_event, user](const Event& event) {
          if (Tell(event, on_event, user) != 0) (void)s->Cancel(event.request);
        }));
    return {};
  });
}

dsv4_status dsv4_cancel(dsv4_service* service, uint64_t request) {
  return Guard([&] { return Use(service, "service").service->Cancel(request); });
}

dsv4_status dsv4_pause(dsv4_service* service, uint64_t request, int paused) {
  return Guard([&]() -> Status {
    Use(service, "service").service->Pause(request, paused != 0);
    return {};
  });
}

dsv4_status dsv4_service_stats_json(const dsv4_service* service, char* json, size_t* length) {
  return Guard([&]() -> Status {
    const ServiceStats s = Use(service, "service").service->Stats();
    FillText(Dump({{"open", s.open},
                   {"running", s.running},
                   {"waiting", s.waiting},
                   {"kv_used_bytes", s.kv_used_bytes},
                   {"kv_kept_bytes", s.kv_kept_bytes},
                   {"kv_budget_bytes", s.kv_budget_bytes},
                   {"prompt_tokens", s.prompt_tokens},
                   {"generated_tokens", s.generated_tokens},
                   {"prefix_queries", s.prefix_queries},
                   {"prefix_hits", s.prefix_hits},
                   {"device_failed", s.device_failed},
                   {"draining", s.draining}}),
             json, length);
    return {};
  });
}

dsv4_status dsv4_drain(dsv4_service* service, double timeout_s) {
  return Guard([&]() -> Status {
    if (Use(service, "service").service->Drain(timeout_s)) return {};
    return Cancelled("requests are still open");
  });
}

dsv4_status dsv4_server_start(dsv4_engine* engine, const dsv4_tokenizer* tokenizer, const char* options_json,
                              size_t length, int* port, dsv4_server** server) {
  return Guard([&]() -> Status {
    const dsv4_engine& e = Use(engine, "engine");
    const dsv4_tokenizer& t = Use(tokenizer, "tokenizer");
    Out(port, "port"), Out(server, "server");
    auto made = std::make_unique<dsv4_server>();
    made->engine = e.engine;
    made->tokenizer = t.tokenizer;
    const ServerOptions options = ReadOptions(TextIn(options_json, length, "options_json"));
    DSV4_ASSIGN_OR_RETURN(made->server, HttpServer::Start(*e.engine, *t.tokenizer, options));
    *port = made->server->port();
    *server = made.release();
    return {};
  });
}

void dsv4_server_stop(dsv4_server* server, double drain_s) {
  if (!IsUsable(server)) return;
  server->server->Drain(std::isnan(drain_s) ? 0 : std::max(drain_s, 0.0));
  (void)server->server->Wait();
  delete server;
}

}  // extern "C"
