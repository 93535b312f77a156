#include "server/observe/spans.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <iterator>
#include <string_view>
#include <utility>

#include <boost/asio/ip/tcp.hpp>

#include "dsv4/version.h"
#include "server/base/memory_reserve.h"
#include "server/base/random.h"
#include "server/http/access.h"

namespace dsv4::server {

namespace {

using SystemTime = std::chrono::system_clock::time_point;

constexpr size_t kMaxWaiting = 4096, kMaxBatch = 512;  // spans
constexpr std::chrono::milliseconds kGather{500};      // the wait for more spans before a batch is sent
constexpr std::chrono::seconds kPostTime{3};
constexpr size_t kMaxStatusLine = 256;  // bytes of the collector's answer that are read
constexpr std::chrono::minutes kTellAgain{1};
constexpr int kServerSpan = 2, kInternalSpan = 1, kErrorStatus = 2;  // numbers of OTLP's enums

Json SpanAttribute(const char* key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}
Json SpanAttribute(const char* key, int64_t value) {
  return {{"key", key}, {"value", {{"intValue", std::to_string(value)}}}};
}
Json SpanAttribute(const char* key, double value) { return {{"key", key}, {"value", {{"doubleValue", value}}}}; }

SystemTime After(SystemTime time, double seconds) {
  return time + std::chrono::duration_cast<SystemTime::duration>(std::chrono::duration<double>(seconds));
}

std::string UnixNanoseconds(SystemTime time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

Json MakeSpan(const std::string& trace, const std::string& id, const std::string& parent, const std::string& name,
              int kind, SystemTime begin, SystemTime end) {
  Json span = {{"traceId", trace}, {"spanId", id}};
  if (!parent.empty()) span["parentSpanId"] = parent;
  span["name"] = name;
  span["kind"] = kind;
  span["startTimeUnixNano"] = UnixNanoseconds(begin);
  span["endTimeUnixNano"] = UnixNanoseconds(end);
  return span;
}

Json RequestAttributes(const HttpRequest& request, const HttpDone& done, const std::string& model) {
  const RequestNote& note = *request.note;
  Json list = {SpanAttribute("http.request.method", request.method),
               SpanAttribute("url.path", request.path.substr(0, 200)),
               SpanAttribute("http.response.status_code", int64_t{done.status}),
               SpanAttribute("client.address", request.peer), SpanAttribute("dsv4.request.id", request.id)};
  if (!note.key.empty()) list.push_back(SpanAttribute("dsv4.key", note.key));
  if (!note.generates) return list;
  list.push_back(SpanAttribute("gen_ai.response.model", model));
  list.push_back(SpanAttribute("gen_ai.usage.input_tokens", note.counts.prompt));
  list.push_back(SpanAttribute("gen_ai.usage.output_tokens", note.counts.completion));
  list.push_back(SpanAttribute("dsv4.usage.cached_tokens", note.counts.cached));
  list.push_back(SpanAttribute("dsv4.usage.accepted_draft_tokens", note.counts.drafted));
  list.push_back(SpanAttribute("gen_ai.latency.time_in_queue", note.times.queued));
  if (note.counts.completion > 0) {
    list.push_back(SpanAttribute("gen_ai.latency.time_to_first_token", note.times.queued + note.times.prompt));
    list.push_back(SpanAttribute("gen_ai.latency.time_in_model_decode", note.times.decode));
  }
  const Json reasons = Json::array({{{"stringValue", *note.finish != '\0' ? note.finish : "abort"}}});
  list.push_back({{"key", "gen_ai.response.finish_reasons"}, {"value", {{"arrayValue", {{"values", reasons}}}}}});
  return list;
}

std::vector<Json> SpansOf(const HttpRequest& request, const HttpDone& done, const std::string& model) {
  const RequestNote& note = *request.note;
  const TraceContext& trace = note.trace;
  std::vector<Json> spans = {MakeSpan(trace.trace_id, trace.span_id, trace.parent_id,
                                      request.method + " " + request.path.substr(0, 200), kServerSpan, note.time,
                                      std::chrono::system_clock::now())};
  spans[0]["attributes"] = RequestAttributes(request, done, model);
  if (done.status >= 500) spans[0]["status"] = {{"code", kErrorStatus}};
  if (!note.generates) return spans;
  SystemTime begin = After(note.time, std::chrono::duration<double>(note.submitted - note.arrived).count());
  const std::pair<const char*, double> phases[] = {
      {"queue", note.times.queued}, {"prompt", note.times.prompt}, {"decode", note.times.decode}};
  for (const auto& [name, seconds] : phases) {
    const SystemTime end = After(begin, seconds);
    if (seconds > 0)
      spans.push_back(MakeSpan(trace.trace_id, RandomHex(16), trace.span_id, name, kInternalSpan, begin, end));
    begin = end;
  }
  return spans;
}

std::string MessageHead() {
  const Json resource = {{"attributes", Json::array({SpanAttribute("service.name", "dsv4"),
                                                     SpanAttribute("service.version", GetBuildInfo().version)})}};
  const Json scope = {{"name", "dsv4"}, {"version", GetBuildInfo().version}};
  return R"({"resourceSpans":[{"resource":)" + Dump(resource) + R"(,"scopeSpans":[{"scope":)" + Dump(scope) +
         R"(,"spans":[)";
}

// Returns the status code of an answer's first line, "HTTP/1.1 200 OK". Returns 0 for any other text.
int StatusOf(std::string_view line) {
  const size_t blank = line.find(' ');
  if (!line.starts_with("HTTP/") || blank == std::string_view::npos) return 0;
  int status = 0;
  std::from_chars(line.data() + blank + 1, line.data() + line.size(), status);
  return status;
}

}  // namespace

Result<std::unique_ptr<SpanExporter>> SpanExporter::Create(const std::string& endpoint, std::string model_name,
                                                           std::function<void(const std::string&)> on_error) {
  constexpr std::string_view kScheme = "http://";
  if (!endpoint.starts_with(kScheme)) {
    return InvalidArgument("--otlp-endpoint is '" + endpoint +
                           "'; accepted: http://HOST[:PORT][/PATH] of a collector's OTLP over HTTP");
  }
  const std::string rest = endpoint.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string host = rest.substr(0, slash);
  Address address{.host = std::string(WithoutPort(host)), .port = "4318", .path = rest.substr(slash)};
  const size_t colon = host.rfind(':');
  if (address.host != host && colon != std::string::npos && host.back() != ']') address.port = host.substr(colon + 1);
  if (address.path.empty() || address.path == "/") address.path = "/v1/traces";
  int port = 0;
  const char* end = address.port.data() + address.port.size();
  const bool is_port = std::from_chars(address.port.data(), end, port).ptr == end && port > 0 && port < 65536;
  if (address.host.empty() || !is_port || address.path.find_first_of(" \r\n") != std::string::npos)
    return InvalidArgument("--otlp-endpoint is '" + endpoint +
                           "', which has no valid host, port or path; use http://HOST[:PORT][/PATH]");
  return std::unique_ptr<SpanExporter>(
      new SpanExporter(std::move(address), std::move(model_name), std::move(on_error)));
}

SpanExporter::SpanExporter(Address address, std::string model_name, std::function<void(const std::string&)> on_error)
    : address_(std::move(address)),
      model_name_(std::move(model_name)),
      on_error_(std::move(on_error)),
      head_(MessageHead()) {
  batch_.reserve(kMaxBatch);
  thread_ = std::thread([this] { Run(); });
}

SpanExporter::~SpanExporter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void SpanExporter::Add(const HttpRequest& request, const HttpDone& done) {
  if (request.note == nullptr || request.note->trace.trace_id.empty() || !request.note->trace.sampled) return;
  std::vector<std::string> spans;
  for (const Json& span : SpansOf(request, done, model_name_)) spans.push_back(Dump(span));
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() + spans.size() > kMaxWaiting) {
      counts_.dropped += spans.size();
      return;
    }
    for (std::string& span : spans) waiting_.push_back(std::move(span));
  }
  wake_.notify_one();
}

SpanExporter::Counts SpanExporter::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void SpanExporter::Run() {
  auto next_word = std::chrono::steady_clock::time_point::min();
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    wake_.wait_for(lock, kGather, [this] { return stop_ || waiting_.size() >= kMaxBatch; });
    const size_t n = std::min(waiting_.size(), kMaxBatch);
    const auto end = waiting_.begin() + static_cast<ptrdiff_t>(n);
    batch_.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
    waiting_.erase(waiting_.begin(), end);
    lock.unlock();
    bool sent = false;
    HasMemoryFor([&] {  // out of memory: the batch counts as dropped
      const Status status = Post();
      sent = status.ok();
      const auto now = std::chrono::steady_clock::now();
      if (!sent && on_error_ && now > next_word) {
        next_word = now + kTellAgain;
        on_error_(status.message());
      }
    });
    batch_.clear();
    lock.lock();
    (sent ? counts_.sent : counts_.dropped) += n;
    if (stop_ && !sent) {  // the collector does not answer: the exporter drops the rest
      counts_.dropped += waiting_.size();
      return;
    }
  }
}

Status SpanExporter::Post() const {
  std::string body = head_;
  for (const std::string& span : batch_) body.append(&span == &batch_.front() ? "" : ",").append(span);
  body += "]}]}]}";
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(kPostTime);
  stream.connect(address_.host, address_.port);
  stream << "POST " << address_.path << " HTTP/1.1\r\nHost: " << address_.host << ':' << address_.port
         << "\r\nContent-Type: application/json\r\nContent-Length: " << body.size() << "\r\nConnection: close\r\n\r\n"
         << body << std::flush;
  std::array<char, kMaxStatusLine> line{};
  stream.getline(line.data(), std::ssize(line));
  const std::string where = "the collector at " + address_.host + ":" + address_.port;
  if (stream.gcount() == 0) return ResourceExhausted(where + " does not answer: " + stream.error().message());
  const int status = StatusOf(line.data());
  if (status == 0) return ResourceExhausted(where + " does not answer with HTTP: check --otlp-endpoint");
  if (status < 200 || status >= 300) return ResourceExhausted(where + " answers with " + std::to_string(status));
  return {};
}

}  // namespace dsv4::server
