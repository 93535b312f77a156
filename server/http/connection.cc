// How a connection reads: framing (by Beast's parser), limits, timeouts. It uses Asio callbacks, not coroutines,
// because GCC 12 destroys some temporaries of co_await expressions twice.
#include "server/http/connection.h"

#include <poll.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "server/base/random.h"

namespace dsv4::server::http_internal {

namespace {

constexpr size_t kMaxMethod = 32;  // bytes of a method that are kept; no method of a route is as long

// bytes kept after a request that is being answered; the socket holds the rest
constexpr size_t kMaxPipelined = 64 << 10;

size_t NumLines(std::string_view text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

bool IsUsableId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  });
}

std::string NewRequestId() { return "req_" + RandomHex(24); }

// Host and path of a request's target.
struct Target {
  std::optional<std::string_view> host;  // not set if the target is only a path
  std::string_view path;                 // with the query
};

// Splits "http://host/path". A client that takes the server for a proxy sends this form; then this host counts, not the
// one in the header (RFC 9112, 3.2.2).
Target SplitTarget(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (LowerAscii(target.substr(0, scheme.size())) != scheme) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    const std::string_view path = target.substr(end);
    return {.host = target.substr(0, end), .path = path.starts_with('/') ? path : "/"};
  }
  return {.host = {}, .path = target};
}

}  // namespace

Connection::Connection(Shared& shared, tcp::socket socket, std::string peer, std::unique_ptr<TlsStream> tls,
                       bool metrics, bool reserved)
    : shared_(shared),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      tls_(std::move(tls)),
      metrics_(metrics),
      reserved_(reserved),
      held_reply_(shared.replies) {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  last_activity_ = Clock::now();
  NextRequest();
  shared_.connections.insert(this);  // last: if this runs out of memory, the connection is in no list
}

void Connection::Sweep(Clock::time_point now) {
  if (closed_) return;
  if (lingering_) {
    if (now > linger_end_) Close("");
  } else if (!reading_ && HasHungUp()) {
    Close("the client left");
  } else if (unsent() > 0) {
    if (ReaderIsSlow(now)) Close("slow reader");
  } else if (answering_) {
    if (streaming_ && !ping_.empty() && now - last_progress_ > ping_after_) SendChunk(ping_);
  } else {
    SweepArrival(now);
  }
}

void Connection::SweepArrival(Clock::time_point now) {
  const HttpOptions& o = shared_.options;
  if (arrival_.began()) {
    if (!arrival_.IsLate(now, {reserved_ ? o.reserved_timeout : o.header_timeout, o.body_timeout, o.min_rate})) return;
    return reserved_ ? Fail(503, "too many connections") : Fail(408, "the request did not arrive in time");
  }
  if (now - last_activity_ <= (reserved_ ? o.reserved_timeout : o.keep_alive)) return;
  if (reserved_) return Fail(503, "too many connections");
  Close("");
}

void Connection::Close(std::string_view why) {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  held_ = {};
  held_reply_ = {};
  if (answering_) Done(why);
}

void Connection::CloseIfIdle() {
  if (!answering_ && unsent() == 0 && !arrival_.began() && in_.empty()) Close("");
}

void Connection::NextRequest() {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(shared_.options.max_header_bytes));
  parser_->body_limit(std::numeric_limits<std::uint64_t>::max());  // IncomingBody has its own
  arrival_ = {};
  head_ = {};
  added_headers_.clear();
  header_checked_ = false;
  header_lines_ = 0;
  if (in_.empty()) in_ = std::string();  // an idle connection holds nothing
}

void Connection::Read() {
  if (closed_ || reading_ || (waits() && in_.size() >= kMaxPipelined)) return;
  auto go_on = [self = shared_from_this()](error_code error) {
    self->reading_ = false;
    if (error) return self->Close("the client left");
    self->Guard([&] { self->OnReadable(); });
  };
  if (tls_ != nullptr && tls_->HasBuffered()) {  // the socket does not become readable for these bytes
    asio::post(socket_.get_executor(), [go_on = std::move(go_on)] { go_on({}); });
  } else {
    socket_.async_wait(tcp::socket::wait_read, std::move(go_on));
  }
  reading_ = true;
}

void Connection::OnReadable() {
  if (closed_) return;
  error_code error;
  const size_t n = ReadSome(error);
  if (error && error != asio::error::would_block) return Close("the client left");
  if (n > 0 && !close_after_write_) TakeBytes({shared_.read_buffer.data(), n});
  Read();
}

size_t Connection::ReadSome(error_code& error) {
  const size_t room = waits() ? kMaxPipelined - in_.size() : shared_.read_buffer.size();
  if (tls_ == nullptr) return socket_.read_some(asio::buffer(shared_.read_buffer, room), error);
  size_t n = 0;
  // A handshake that cannot be written now continues when the client sends more, or never; timeouts end it then.
  if (tls_->Read(shared_.read_buffer.data(), room, &n) == TlsStream::Io::kEnd) error = asio::error::eof;
  return n;
}

void Connection::TakeBytes(std::string_view bytes) {
  last_activity_ = Clock::now();
  if (waits() && in_.size() + bytes.size() > in_.capacity()) {  // grow once, because a string doubles its capacity
    std::string larger;
    larger.reserve(kMaxPipelined);
    in_ = std::move(larger += in_);
  }
  in_ += bytes;
  if (!waits()) Parse();
  if (in_.empty()) in_ = std::string();  // parsed bytes are stored elsewhere
}

bool Connection::HasHungUp() {
  pollfd socket{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&socket, 1, 0) > 0;
}

void Connection::Parse() {
  arrival_.Begin(Clock::now());
  while (!in_.empty() && arrival_.began() && !closed_ && !answering_ && !close_after_write_) {
    if (!ParseSome()) return;
  }
}

bool Connection::ParseSome() {
  if (!header_checked_ && HeaderHasTooManyLines()) {
    Fail(431, "the header has more than " + std::to_string(shared_.options.max_header_lines) + " lines");
    return false;
  }
  error_code error;
  const bool in_body = header_checked_;
  const auto& body = parser_->get().body().text;
  const size_t body_before = body.size();
  const size_t used = parser_->put(asio::buffer(in_), error);
  if (!in_body) header_lines_ += NumLines(std::string_view(in_).substr(0, used));
  in_.erase(0, used);
  if (error && error != http::error::need_more) {
    RefuseFraming(error);
    return false;
  }
  if (in_body) {
    arrival_.Count(used, body.size() - body_before);
    // A parser that is not done here waits for the end of a chunk line or of the trailer. If it is done, the bytes
    // belong to the next request.
    if ((!parser_->is_done() && in_.size() > shared_.options.max_header_bytes) ||
        arrival_.FramingIsTooLarge(shared_.options.max_framing_bytes)) {
      Fail(431, "the chunks' sizes, extensions and trailer are too large");
      return false;
    }
  } else if (parser_->is_header_done()) {
    header_checked_ = true;
    if (!CheckHeader()) return false;
    arrival_.HeaderIsDone(Clock::now());
    parser_->eager(true);
  }
  if (parser_->is_done()) {
    Dispatch();
    return false;
  }
  return error != http::error::need_more && used > 0;
}

// Checked before the parser makes a field of each line, which takes ten times the memory of the shortest line.
bool Connection::HeaderHasTooManyLines() {
  if (header_lines_ > 0 && in_.starts_with("\r\n")) return false;  // the end of the header
  const size_t end = in_.find("\r\n\r\n");
  const std::string_view header = std::string_view(in_).substr(0, end == in_.npos ? end : end + 2);
  return header_lines_ + NumLines(header) > shared_.options.max_header_lines + 1;  // + 1: the request line
}

void Connection::RefuseFraming(error_code error) {
  if (error == http::error::body_limit) {
    Fail(413, "the body is larger than " + std::to_string(parser_->get().body().limit) +
                  " bytes; the server's --max-body sets the limit");
  } else if (error == http::error::buffer_overflow) {
    Fail(503, "the bodies of all requests fill the server's --max-body-total; try again");
  } else if (error == http::error::header_limit) {
    Fail(431, "the header is too large");
  } else {
    Fail(400, "not a valid HTTP request: " + error.message());
  }
}

// Only the header has been read here: a parser that is not eager stops after it.
bool Connection::CheckHeader() {
  version_ = static_cast<int>(parser_->get().version());
  keep_alive_ = parser_->keep_alive() && !reserved_;
  head_ = ReadHead();
  if (!HasSoundHeader()) return false;
  HttpVerdict verdict = shared_.gate(head_);
  head_.note = verdict.note;
  if (!verdict.path.empty()) head_.path = std::move(verdict.path);
  const bool has_body = !parser_->is_done();
  if (verdict.refusal) {
    Refuse(*verdict.refusal, /*read_on=*/!has_body);
    return false;
  }
  auto& body = parser_->get().body();
  body.limit = verdict.max_body_bytes;
  body.held = HeldBytes(shared_.bodies);
  if (parser_->content_length().value_or(0) > body.limit) {
    RefuseFraming(http::error::body_limit);
    return false;
  }
  if (has_body && LowerAscii(head_.Header("expect")) == "100-continue") Send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

// A page can read an error only if the reply names its origin. The parser makes fields after the whole header has
// arrived, so an incomplete header is searched for the line.
std::string_view Connection::Origin() const {
  if (!head_.headers.empty()) return head_.Header("origin");
  const std::string header = LowerAscii(std::string_view(in_).substr(0, in_.find("\r\n\r\n")));
  constexpr std::string_view name = "\r\norigin: ";
  const size_t at = header.find(name);
  if (at == header.npos) {
    const auto field = parser_->get()[http::field::origin];
    return {field.data(), field.size()};
  }
  const std::string_view rest = std::string_view(in_).substr(at + name.size());
  return rest.substr(0, rest.find("\r\n"));
}

bool Connection::HasSoundHeader() {
  const std::string_view coding = head_.Header("transfer-encoding"), encoding = head_.Header("content-encoding");
  const auto& fields = parser_->get();
  // If the end of the body is uncertain, the next request may begin anywhere (RFC 9112, 6.1): Fail reads no more.
  const size_t num_codings = fields.count(http::field::transfer_encoding);
  if (fields.count(http::field::host) > 1) {
    Fail(400, "not a valid HTTP request: more than one Host");
  } else if (SplitTarget({fields.target().data(), fields.target().size()}).host == "") {
    Fail(400, "not a valid HTTP request: its target names no host");
  } else if (num_codings > 0 && (version_ < 11 || num_codings > 1 || coding.empty())) {
    Fail(400, "not a valid HTTP request: Transfer-Encoding is empty, repeated or in HTTP/1.0");
  } else if (num_codings > 0 && LowerAscii(coding) != "chunked") {
    Fail(501, "Transfer-Encoding must be chunked");
  } else if (!encoding.empty() && LowerAscii(encoding) != "identity") {
    Fail(415, "bodies with a Content-Encoding are not supported; send the body without it");
  } else {
    return true;
  }
  return false;
}

HttpRequest Connection::ReadHead() const {
  const auto& message = parser_->get();
  HttpRequest head;
  head.method = std::string(message.method_string()).substr(0, kMaxMethod);
  const Target target = SplitTarget({message.target().data(), message.target().size()});
  const size_t question = target.path.find('?');
  head.path = target.path.substr(0, question);
  if (question != std::string::npos) head.query = target.path.substr(question + 1);
  if (target.host) head.headers.emplace_back("host", *target.host);
  for (const auto& field : message) {
    if (target.host && field.name() == http::field::host) continue;
    head.headers.emplace_back(LowerAscii({field.name_string().data(), field.name_string().size()}),
                              std::string(field.value()));
  }
  head.peer = peer_;
  head.reserved = reserved_;
  head.metrics = metrics_;
  const std::string_view id = head.Header("x-request-id");
  head.id = IsUsableId(id) ? std::string(id) : NewRequestId();
  return head;
}

void Connection::Dispatch() {
  BeginReply();
  IncomingBody::value_type& body = parser_->get().body();
  HttpRequest request = std::move(head_);
  request.body = std::move(body.text);
  held_ = std::move(body.held);
  shared_.handler(
      std::make_shared<ExchangeImpl>(shared_from_this(), shared_.context, shared_.let_go, serial_, std::move(request)));
}

void Connection::Fail(int status, std::string_view message) {
  std::string body = R"({"error":{"message":")";
  for (const char c : message) body += c == '"' || c == '\\' || static_cast<unsigned char>(c) < 32 ? '\'' : c;
  body += R"(","type":"invalid_request_error","param":null,"code":null}})";
  HeaderList headers;
  if (status == 503) headers.emplace_back("Retry-After", "1");
  Refuse({.status = status, .type = "application/json", .body = std::move(body), .headers = std::move(headers)},
         /*read_on=*/false);
}

void Connection::Refuse(const HttpReply& reply, bool read_on) {
  BeginReply();
  if (!read_on) keep_alive_ = false;
  Respond(serial_, reply.status, reply.type, reply.body, reply.headers);
}

void Connection::BeginReply() {
  if (shared_.options.added_headers) added_headers_ = shared_.options.added_headers(Origin());
  // For the log: everything except the body and the headers, which may hold secrets.
  request_ = {.method = head_.method,
              .path = head_.path,
              .query = {},
              .headers = {},
              .body = {},
              .id = head_.id.empty() ? NewRequestId() : head_.id,
              .peer = peer_,
              .note = head_.note};
  ++serial_;
  answering_ = true;
  complete_ = false;
  status_ = 0;
  sent_bytes_ = 0;
  start_ = Clock::now();
}

}  // namespace dsv4::server::http_internal
