// Asio callbacks rather than coroutines: GCC 12 destroys some temporaries of co_await expressions twice. Framing is Beast's
// parser's; replies are written by hand.
#include "http_connection.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <utility>

#include <boost/asio/post.hpp>

namespace dsv4::server::http_internal {

namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxPipelined = 256 << 10;  // bytes that may arrive while a request is being answered
constexpr std::chrono::seconds kLinger{2};   // how long the rest of a refused request is read and thrown away

std::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool IsUsableId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

class ExchangeImpl : public Exchange {
 public:
  ExchangeImpl(std::shared_ptr<Connection> connection, asio::io_context& context, uint64_t serial,
               HttpRequest request)
      : connection_(std::move(connection)), context_(context), serial_(serial), request_(std::move(request)) {}
  // The connection goes along: whoever drops the exchange, a connection ends its life on the I/O thread.
  ~ExchangeImpl() override {
    asio::post(context_, [connection = std::move(connection_), serial = serial_] { connection->Abandoned(serial); });
  }
  const HttpRequest& request() const override { return request_; }
  void Respond(int status, std::string_view type, std::string body, HeaderList headers) override {
    Do([serial = serial_, status, type = std::string(type), body = std::move(body),
        headers = std::move(headers)](Connection& c) { c.Respond(serial, status, type, body, headers); });
  }
  void StartStream(int status, std::string_view type, HeaderList headers) override {
    Do([serial = serial_, status, type = std::string(type), headers = std::move(headers)](Connection& c) {
      c.StartStream(serial, status, type, headers);
    });
  }
  // Nearly all calls are writes by the I/O thread: they need no turn in its queue, where none of this exchange's waits there.
  void Write(std::string bytes) override {
    if (IsNext()) return connection_->Write(serial_, bytes);
    Do([serial = serial_, bytes = std::move(bytes)](Connection& c) { c.Write(serial, bytes); });
  }
  void FinishStream() override {
    if (IsNext()) return connection_->FinishStream(serial_);
    Do([serial = serial_](Connection& c) { c.FinishStream(serial); });
  }
  void SetPing(std::string bytes, std::chrono::seconds silence) override {
    Do([serial = serial_, bytes = std::move(bytes), silence](Connection& c) {
      c.SetPing(serial, bytes, silence);
    });
  }
  void OnClose(std::function<void()> call) override {
    Do([serial = serial_, call = std::move(call)](Connection& c) { c.OnClose(serial, call); });
  }
  void OnPressure(std::function<void(bool)> call) override {
    Do([serial = serial_, call = std::move(call)](Connection& c) { c.OnPressure(serial, call); });
  }

 private:
  bool IsNext() const { return *num_queued_ == 0 && context_.get_executor().running_in_this_thread(); }
  template <typename Call>
  void Do(Call call) {
    ++*num_queued_;
    asio::post(context_, [connection = connection_, num_queued = num_queued_, call = std::move(call)] {
      call(*connection);
      --*num_queued;
    });
  }

  std::shared_ptr<Connection> connection_;
  asio::io_context& context_;
  uint64_t serial_;
  HttpRequest request_;
  const std::shared_ptr<std::atomic<int>> num_queued_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace

std::string IdSource::Next() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id = "req_";
  uint64_t bits = random_();
  for (int i = 0; i < 24; ++i) {
    if (i == 16) bits = random_();
    id += kDigits[(bits >> (4 * (i % 16))) & 15];
  }
  return id;
}

Connection::Connection(Shared& shared, tcp::socket socket, std::string peer)
    : shared_(shared), socket_(std::move(socket)), peer_(std::move(peer)), buffer_(kReadBytes) {
  shared_.connections.insert(this);
  NewParser();
  last_activity_ = Clock::now();
}

void Connection::Refuse(int status, std::string_view message) {
  request_.id = shared_.ids.Next();
  Fail(status, message);
  Read();
}

void Connection::Respond(uint64_t serial, int status, const std::string& type, const std::string& body,
             const HeaderList& headers) {
  if (serial != serial_ || !answering_ || streaming_) return;
  status_ = status;
  std::string head = Head(status, type, headers);
  head += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  Send(std::move(head));
  if (request_.method != "HEAD") Send(body);
  FinishReply();
}

void Connection::StartStream(uint64_t serial, int status, const std::string& type, const HeaderList& headers) {
  if (serial != serial_ || !answering_ || streaming_) return;
  status_ = status;
  streaming_ = true;
  chunked_ = version_ >= 11;
  if (!chunked_) keep_alive_ = false;
  std::string head = Head(status, type, headers);
  if (chunked_) head += "Transfer-Encoding: chunked\r\n";
  Send(head + "\r\n");
}

void Connection::Write(uint64_t serial, const std::string& bytes) {
  if (serial != serial_ || !answering_ || !streaming_ || bytes.empty()) return;
  SendChunk(bytes);
}

void Connection::FinishStream(uint64_t serial) {
  if (serial != serial_ || !answering_ || !streaming_) return;
  if (chunked_) Send("0\r\n\r\n");
  FinishReply();
}

void Connection::SetPing(uint64_t serial, std::string bytes, std::chrono::seconds silence) {
  if (serial != serial_) return;
  ping_ = std::move(bytes);
  ping_after_ = silence;
}

void Connection::OnClose(uint64_t serial, std::function<void()> call) {
  if (serial == serial_ && answering_) {
    on_close_ = std::move(call);
  } else if (serial != serial_ || !complete_) {
    call();
  }
}

void Connection::OnPressure(uint64_t serial, std::function<void(bool)> call) {
  if (serial == serial_ && answering_) on_pressure_ = std::move(call);
}

void Connection::Abandoned(uint64_t serial) {
  if (serial != serial_ || !answering_) return;
  if (streaming_) return Close();
  Respond(
      serial, 500, "application/json",
      R"({"error":{"message":"the request was dropped inside the server","type":"internal_error","param":null,"code":null}})",
      {});
}

void Connection::Sweep(Clock::time_point now) {
  if (closed_) return;
  if (unsent() > 0) {
    if (now - last_progress_ > shared_.options.write_timeout) Close();
    return;
  }
  if (lingering_) {
    if (now - last_activity_ > kLinger) Close();
    return;
  }
  if (answering_) {
    if (streaming_ && !ping_.empty() && now - last_progress_ > ping_after_) SendChunk(ping_);
    return;
  }
  const bool inside = !in_.empty() || parser_->is_header_done();
  if (now - last_activity_ > (inside ? shared_.options.read_timeout : shared_.options.keep_alive)) {
    if (inside) return Fail(408, "the request did not arrive in time");
    Close();
  }
}

void Connection::Close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  if (answering_) Done(/*complete=*/false);
}

void Connection::CloseIfIdle() {
  if (!answering_ && unsent() == 0 && in_.empty() && !parser_->is_header_done()) Close();
}

void Connection::NewParser() {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<std::uint32_t>(shared_.options.max_header_bytes));
  parser_->body_limit(shared_.options.max_body_bytes);
  continued_ = false;
}

void Connection::Read() {
  if (closed_ || reading_) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(buffer_), [self = shared_from_this()](error_code error, size_t n) {
    self->reading_ = false;
    self->OnRead(error, n);
  });
}

void Connection::OnRead(error_code error, size_t n) {
  if (closed_) return;
  if (error) return Close();
  last_activity_ = Clock::now();
  if (lingering_) return Read();
  in_.append(buffer_.data(), n);
  if (answering_) {
    if (in_.size() > kMaxPipelined) return Close();
    return Read();
  }
  Parse();
  Read();
}

void Connection::Parse() {
  while (!in_.empty() && !closed_ && !answering_ && !lingering_) {
    error_code error;
    const size_t used = parser_->put(asio::buffer(in_), error);
    in_.erase(0, used);
    if (error && error != http::error::need_more) return RefuseFraming(error);
    if (parser_->is_header_done() && !continued_) {
      continued_ = true;
      if (!CheckHeader()) return;
    }
    if (parser_->is_done()) {
      Dispatch();
    } else if (error == http::error::need_more || used == 0) {
      return;
    }
  }
}

void Connection::RefuseFraming(error_code error) {
  if (error == http::error::body_limit) {
    return Fail(413, "the body is larger than " + std::to_string(shared_.options.max_body_bytes) +
                         " bytes; the server's --max-body sets the limit");
  }
  if (error == http::error::header_limit) return Fail(431, "the header is too large");
  Fail(400, "not a valid HTTP request: " + error.message());
}

bool Connection::CheckHeader() {
  const auto& head = parser_->get();
  const auto coding = head[http::field::transfer_encoding];
  if (!coding.empty() && Lower({coding.data(), coding.size()}) != "chunked") {
    Fail(501, "Transfer-Encoding must be chunked");
    return false;
  }
  if (parser_->is_done()) return true;
  const auto expect = head[http::field::expect];
  if (Lower({expect.data(), expect.size()}) == "100-continue") Send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void Connection::Fail(int status, std::string_view message) {
  keep_alive_ = false;
  answering_ = true;
  ++serial_;
  start_ = Clock::now();
  if (request_.id.empty() || request_.path.empty()) request_.id = shared_.ids.Next();
  request_.peer = peer_;
  std::string body = R"({"error":{"message":")";
  for (const char c : message)
    body += c == '"' || c == '\\' || static_cast<unsigned char>(c) < 32 ? '\'' : c;
  body += R"(","type":"invalid_request_error","param":null,"code":null}})";
  Respond(serial_, status, "application/json", body, {});
}

std::string Connection::Head(int status, const std::string& type, const HeaderList& headers) const {
  std::string head = "HTTP/1.1 " + std::to_string(status) + " " + std::string(Reason(status)) + "\r\n";
  if (!type.empty()) head += "Content-Type: " + type + "\r\n";
  head += "x-request-id: " + request_.id + "\r\n";
  for (const auto& [name, value] : shared_.options.headers) head += name + ": " + value + "\r\n";
  for (const auto& [name, value] : headers) head += name + ": " + value + "\r\n";
  if (!keep_alive_ || shared_.draining) {
    head += "Connection: close\r\n";
  } else if (version_ < 11) {
    head += "Connection: keep-alive\r\n";
  }
  return head;
}

void Connection::SendChunk(const std::string& bytes) {
  if (!chunked_) return Send(bytes);
  std::array<char, 20> size;
  const auto end = std::to_chars(size.data(), size.data() + size.size(), bytes.size(), 16).ptr;
  Send(std::string(size.data(), end) + "\r\n" + bytes + "\r\n");
}

void Connection::Send(const std::string& bytes) {
  if (closed_) return;
  if (unsent() == 0) last_progress_ = Clock::now();
  out_ += bytes;
  sent_bytes_ += bytes.size();
  if (streaming_ && unsent() > shared_.options.max_unsent_bytes) return Close();
  if (!pressed_ && on_pressure_ && unsent() > shared_.options.pressure_bytes) {
    pressed_ = true;
    on_pressure_(true);
  }
  Flush();
}

void Connection::Flush() {
  if (flushing_ || closed_) return;
  flushing_ = true;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->WriteSome(); });
}

void Connection::WriteSome() {
  if (closed_) return;
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
    std::swap(writing_, out_);
  }
  if (writing_.empty()) {
    flushing_ = false;
    return AfterWriting();
  }
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](error_code error, size_t n) {
                             if (self->closed_) return;
                             if (error) return self->Close();
                             self->written_ += n;
                             self->last_progress_ = Clock::now();
                             if (self->pressed_ && self->unsent() < self->shared_.options.pressure_bytes / 4) {
                               self->pressed_ = false;
                               if (self->on_pressure_) self->on_pressure_(false);
                             }
                             self->WriteSome();
                           });
}

void Connection::FinishReply() {
  Done(/*complete=*/true);
  if (closed_) return;
  if (!keep_alive_ || shared_.draining) {
    close_after_write_ = true;
    return;
  }
  last_activity_ = Clock::now();
  NewParser();
  if (in_.empty()) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->Parse(); });
}

void Connection::AfterWriting() {
  if (!close_after_write_ || lingering_) return;
  // Bytes of the request may still be on their way; closing now would reset the connection and lose the reply.
  lingering_ = true;
  last_activity_ = Clock::now();
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  Read();
}

void Connection::Done(bool complete) {
  answering_ = false;
  streaming_ = false;
  complete_ = complete;
  ping_.clear();
  const auto on_close = std::exchange(on_close_, nullptr);
  on_pressure_ = nullptr;
  pressed_ = false;
  const HttpDone done{.status = status_ == 0 ? 499 : status_,
                      .complete = complete,
                      .sent_bytes = sent_bytes_,
                      .seconds = std::chrono::duration<double>(Clock::now() - start_).count()};
  if (shared_.done) shared_.done(request_, done);
  if (!complete && on_close) on_close();
}

void Connection::Dispatch() {
  const auto& message = parser_->get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(Lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value()));
  }
  request.peer = peer_;
  const std::string_view id = request.Header("x-request-id");
  request.id = IsUsableId(id) ? std::string(id) : shared_.ids.Next();
  version_ = static_cast<int>(message.version());
  keep_alive_ = parser_->keep_alive();
  // For the log: everything but the body and the headers, which may hold secrets.
  request_ = {.method = request.method,
              .path = request.path,
              .query = {},
              .headers = {},
              .body = {},
              .id = request.id,
              .peer = request.peer};
  request.body = std::move(parser_->get().body());
  ++serial_;
  answering_ = true;
  complete_ = false;
  status_ = 0;
  sent_bytes_ = 0;
  start_ = Clock::now();
  shared_.handler(
      std::make_shared<ExchangeImpl>(shared_from_this(), shared_.context, serial_, std::move(request)));
}

}  // namespace dsv4::server::http_internal
