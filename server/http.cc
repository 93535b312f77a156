// The only file that includes Boost. Asio callbacks rather than coroutines: GCC 12 destroys some temporaries of
// co_await expressions twice. Framing is Beast's parser's; replies are written by hand.
#include "http.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <deque>
#include <random>
#include <unordered_set>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace dsv4::server {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Parser = http::request_parser<http::string_body>;

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

class IdSource {
 public:
  std::string Next() {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string id = "req_";
    uint64_t bits = random_();
    for (int i = 0; i < 24; ++i) {
      if (i == 16) bits = random_();
      id += kDigits[(bits >> (4 * (i % 16))) & 15];
    }
    return id;
  }

 private:
  std::mt19937_64 random_{(static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}()};
};

class Connection;

// What the connections share. Used on the I/O thread only, but for the context.
struct Shared {
  HttpOptions options;
  HttpServer::Handler handler;
  HttpServer::DoneFn done;
  IdSource ids;
  std::unordered_set<Connection*> connections;
  bool draining = false;
  asio::io_context context{1};  // last: its end drops queued calls, and with them connections
};

class ExchangeImpl;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, tcp::socket socket, std::string peer)
      : shared_(shared), socket_(std::move(socket)), peer_(std::move(peer)), buffer_(kReadBytes) {
    shared_.connections.insert(this);
    NewParser();
    last_activity_ = Clock::now();
  }
  ~Connection() { shared_.connections.erase(this); }

  void Start() { Read(); }
  bool busy() const { return answering_; }

  // Accepted beyond the limit: an answer, then away.
  void Refuse(int status, std::string_view message) {
    request_.id = shared_.ids.Next();
    Fail(status, message);
    Read();
  }

  // ---- Called by the exchange, on the I/O thread.

  void Respond(uint64_t serial, int status, const std::string& type, const std::string& body,
               const HeaderList& headers) {
    if (serial != serial_ || !answering_ || streaming_) return;
    status_ = status;
    std::string head = Head(status, type, headers);
    head += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
    Send(std::move(head));
    if (request_.method != "HEAD") Send(body);
    FinishReply();
  }
  void StartStream(uint64_t serial, int status, const std::string& type, const HeaderList& headers) {
    if (serial != serial_ || !answering_ || streaming_) return;
    status_ = status;
    streaming_ = true;
    chunked_ = version_ >= 11;
    if (!chunked_) keep_alive_ = false;
    std::string head = Head(status, type, headers);
    if (chunked_) head += "Transfer-Encoding: chunked\r\n";
    Send(head + "\r\n");
  }
  void Write(uint64_t serial, const std::string& bytes) {
    if (serial != serial_ || !answering_ || !streaming_ || bytes.empty()) return;
    SendChunk(bytes);
  }
  void FinishStream(uint64_t serial) {
    if (serial != serial_ || !answering_ || !streaming_) return;
    if (chunked_) Send("0\r\n\r\n");
    FinishReply();
  }
  void SetPing(uint64_t serial, std::string bytes, std::chrono::seconds silence) {
    if (serial != serial_) return;
    ping_ = std::move(bytes);
    ping_after_ = silence;
  }
  void OnClose(uint64_t serial, std::function<void()> call) {
    if (serial == serial_ && answering_) {
      on_close_ = std::move(call);
    } else if (serial != serial_ || !complete_) {
      call();
    }
  }
  void OnPressure(uint64_t serial, std::function<void(bool)> call) {
    if (serial == serial_ && answering_) on_pressure_ = std::move(call);
  }
  // The handler let go of the exchange.
  void Abandoned(uint64_t serial) {
    if (serial != serial_ || !answering_) return;
    if (streaming_) return Close();
    Respond(
        serial, 500, "application/json",
        R"({"error":{"message":"the request was dropped inside the server","type":"internal_error","param":null,"code":null}})",
        {});
  }

  // Once a second: time-outs and pings.
  void Sweep(Clock::time_point now) {
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

  void Close() {
    if (closed_) return;
    closed_ = true;
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
    if (answering_) Done(/*complete=*/false);
  }
  void CloseIfIdle() {
    if (!answering_ && unsent() == 0 && in_.empty() && !parser_->is_header_done()) Close();
  }

 private:
  void NewParser() {
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(static_cast<std::uint32_t>(shared_.options.max_header_bytes));
    parser_->body_limit(shared_.options.max_body_bytes);
    continued_ = false;
  }

  // One read is always outstanding: its end is how a client's leaving is noticed.
  void Read() {
    if (closed_ || reading_) return;
    reading_ = true;
    socket_.async_read_some(asio::buffer(buffer_), [self = shared_from_this()](error_code error, size_t n) {
      self->reading_ = false;
      self->OnRead(error, n);
    });
  }

  void OnRead(error_code error, size_t n) {
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

  void Parse() {
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

  void RefuseFraming(error_code error) {
    if (error == http::error::body_limit) {
      return Fail(413, "the body is larger than " + std::to_string(shared_.options.max_body_bytes) +
                           " bytes; the server's --max-body sets the limit");
    }
    if (error == http::error::header_limit) return Fail(431, "the header is too large");
    Fail(400, "not a valid HTTP request: " + error.message());
  }

  // False: the request has been refused.
  bool CheckHeader() {
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

  void Dispatch();

  // A request that never reached a handler.
  void Fail(int status, std::string_view message) {
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

  std::string Head(int status, const std::string& type, const HeaderList& headers) const {
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

  size_t unsent() const { return out_.size() + writing_.size() - written_; }

  void SendChunk(const std::string& bytes) {
    if (!chunked_) return Send(bytes);
    std::array<char, 20> size;
    const auto end = std::to_chars(size.data(), size.data() + size.size(), bytes.size(), 16).ptr;
    Send(std::string(size.data(), end) + "\r\n" + bytes + "\r\n");
  }

  void Send(const std::string& bytes) {
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

  // Frames of one turn of the I/O loop leave together.
  void Flush() {
    if (flushing_ || closed_) return;
    flushing_ = true;
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->WriteSome(); });
  }

  void WriteSome() {
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

  void FinishReply() {
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

  void AfterWriting() {
    if (!close_after_write_ || lingering_) return;
    // Bytes of the request may still be on their way; closing now would reset the connection and lose the reply.
    lingering_ = true;
    last_activity_ = Clock::now();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    Read();
  }

  void Done(bool complete) {
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

  Shared& shared_;
  tcp::socket socket_;
  std::string peer_;
  std::vector<char> buffer_;
  std::string in_;
  std::optional<Parser> parser_;
  bool continued_ = false;
  bool reading_ = false;

  // The request being answered.
  HttpRequest request_;
  uint64_t serial_ = 0;
  int version_ = 11;
  bool keep_alive_ = true;
  bool answering_ = false, streaming_ = false, chunked_ = false;
  bool complete_ = false;  // of the latest reply
  int status_ = 0;
  size_t sent_bytes_ = 0;
  Clock::time_point start_;
  std::string ping_;
  std::chrono::seconds ping_after_{0};
  std::function<void()> on_close_;
  std::function<void(bool)> on_pressure_;
  bool pressed_ = false;

  std::string out_, writing_;
  size_t written_ = 0;
  bool flushing_ = false;
  bool close_after_write_ = false, lingering_ = false, closed_ = false;
  Clock::time_point last_activity_, last_progress_;
};

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
  void Write(std::string bytes) override {
    Do([serial = serial_, bytes = std::move(bytes)](Connection& c) { c.Write(serial, bytes); });
  }
  void FinishStream() override {
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
  template <typename Call>
  void Do(Call call) {
    asio::post(context_, [connection = connection_, call = std::move(call)] { call(*connection); });
  }

  std::shared_ptr<Connection> connection_;
  asio::io_context& context_;
  uint64_t serial_;
  HttpRequest request_;
};

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

class HttpServerImpl : public HttpServer {
 public:
  HttpServerImpl(const HttpOptions& options, Handler handler, DoneFn done)
      : acceptor_(shared_.context), sweeper_(shared_.context), signals_(shared_.context) {
    shared_.options = options;
    shared_.handler = std::move(handler);
    shared_.done = std::move(done);
  }
  ~HttpServerImpl() override { Close(); }
  void Close() override {
    error_code ignored;
    acceptor_.close(ignored);
    for (Connection* c : Connections()) c->Close();
    // Calls that are still queued hold connections and may queue more.
    shared_.context.restart();
    while (shared_.context.poll() > 0) {
    }
  }

  Status Open() {
    error_code error;
    tcp::resolver resolver(shared_.context);
    const auto found = resolver.resolve(shared_.options.host, std::to_string(shared_.options.port), error);
    if (error || found.empty()) {
      return InvalidArgument("--host " + shared_.options.host +
                             " is not an address of this machine: " + error.message());
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    const std::string where = shared_.options.host + ":" + std::to_string(shared_.options.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return ResourceExhausted("cannot listen on " + where + ": " + error.message() +
                               "; choose another --port (0: any free one)");
    }
    port_ = acceptor_.local_endpoint().port();
    Accept();
    return {};
  }

  int port() const override { return port_; }
  void Run() override {
    const auto work = asio::make_work_guard(shared_.context);
    shared_.context.run();
  }
  void Stop() override { shared_.context.stop(); }
  void Post(std::function<void()> call) override { asio::post(shared_.context, std::move(call)); }
  void PostAfter(std::chrono::milliseconds delay, std::function<void()> call) override {
    auto timer = std::make_shared<asio::steady_timer>(shared_.context, delay);
    timer->async_wait([timer, call = std::move(call)](error_code error) {
      if (!error) call();
    });
  }
  void OnSignal(std::function<void(int)> call) override {
    error_code ignored;
    signals_.add(SIGINT, ignored);
    signals_.add(SIGTERM, ignored);
    on_signal_ = std::move(call);
    WaitForSignal();
  }
  void Drain() override {
    shared_.draining = true;
    error_code ignored;
    acceptor_.close(ignored);
    for (Connection* c : Connections()) c->CloseIfIdle();
  }
  size_t num_connections() const override { return shared_.connections.size(); }
  size_t num_busy() const override {
    return static_cast<size_t>(std::count_if(shared_.connections.begin(), shared_.connections.end(),
                                             [](const Connection* c) { return c->busy(); }));
  }

 private:
  // A copy: closing one may end its life.
  std::vector<Connection*> Connections() const {
    return {shared_.connections.begin(), shared_.connections.end()};
  }

  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (error) {
        // Out of file descriptors, most likely: try again later rather than at once.
        PostAfter(std::chrono::milliseconds(100), [this] { Accept(); });
        return;
      }
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      const auto remote = socket.remote_endpoint(ignored);
      const auto connection = std::make_shared<Connection>(shared_, std::move(socket),
                                                           remote.address().to_string(ignored));
      if (shared_.connections.size() > shared_.options.max_connections) {
        connection->Refuse(503, "too many connections");
      } else {
        connection->Start();
      }
      if (!sweeping_) Sweep();
      Accept();
    });
  }

  void Sweep() {
    sweeping_ = !shared_.connections.empty();
    if (!sweeping_) return;
    sweeper_.expires_after(std::chrono::seconds(1));
    sweeper_.async_wait([this](error_code error) {
      if (error) return;
      const auto now = Clock::now();
      for (Connection* c : Connections()) {
        if (shared_.connections.contains(c)) c->shared_from_this()->Sweep(now);
      }
      Sweep();
    });
  }

  void WaitForSignal() {
    signals_.async_wait([this](error_code error, int signal) {
      if (error) return;
      on_signal_(signal);
      WaitForSignal();
    });
  }

  Shared shared_;
  tcp::acceptor acceptor_;
  asio::steady_timer sweeper_;
  asio::signal_set signals_;
  std::function<void(int)> on_signal_;
  bool sweeping_ = false;
  int port_ = 0;
};

}  // namespace

std::string_view HttpRequest::Header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpOptions& options, Handler handler,
                                                       DoneFn done) {
  auto server = std::make_unique<HttpServerImpl>(options, std::move(handler), std::move(done));
  DSV4_RETURN_IF_ERROR(server->Open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace dsv4::server
