// Listening, accepting, time-outs, signals.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/memory_reserve.h"
#include "server/base/signals.h"
#include "server/http/connection.h"

namespace dsv4::server {

namespace {

using namespace http_internal;

constexpr int kSendBuffer = 256 << 10;
constexpr std::string_view kFewDescriptors = "the process has no file descriptors left; raise its limit (ulimit -n)";

class HttpServerImpl : public HttpServer {
 public:
  HttpServerImpl(const HttpOptions& options, Gate gate, Handler handler, DoneFn done)
      : shared_(options),
        main_(shared_.context),
        metrics_(shared_.context),
        sweeper_(shared_.context),
        signals_(shared_.context) {
    shared_.gate = std::move(gate);
    shared_.handler = std::move(handler);
    shared_.done = std::move(done);
  }
  ~HttpServerImpl() override { Close(); }
  void Close() override {
    error_code ignored;
    for (Listener* l : {&main_, &metrics_}) l->acceptor.close(ignored);
    for (Connection* c : Connections()) c->Close("the server stopped");
    shared_.let_go.Settle();
    // Calls that are still queued hold connections and may queue more.
    shared_.context.restart();
    while (shared_.context.poll() > 0) {
    }
    shared_.let_go.Settle();
  }

  Status Open() {
    const HttpOptions& o = shared_.options;
    if (!o.tls_cert.empty()) {
      DSV4_ASSIGN_OR_RETURN(tls_, TlsContext::Load(o.tls_cert, o.tls_key));
    }
    DSV4_RETURN_IF_ERROR(Open(o.port, "--port", &main_));
    return o.metrics_port < 0 ? Status() : Open(o.metrics_port, "--metrics-port", &metrics_);
  }

  int port() const override { return main_.port; }
  int metrics_port() const override { return metrics_.port; }
  bool is_loopback() const override { return loopback_; }
  void Run() override {
    const auto work = asio::make_work_guard(shared_.context);
    while (true) {
      const bool ended = HasMemoryFor([this] {
        for (Listener* l : {&main_, &metrics_}) {
          if (!l->accepting && l->acceptor.is_open()) Accept(*l);
        }
        if (!sweeping_) Sweep();
        shared_.context.run();
      });
      if (ended) return;
      // The next turn starts the accepts and the sweep that have not started. Until then other requests end and free
      // memory. Asio may have lost an accept silently if it found no memory for the new socket; cancelling starts it
      // again.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      for (Listener* l : {&main_, &metrics_}) {
        error_code ignored;
        l->acceptor.cancel(ignored);
        l->accepting = false;
      }
    }
  }
  void Stop() override { shared_.context.stop(); }
  void Post(std::function<void()> call) override { asio::post(shared_.context, std::move(call)); }
  void PostAfter(std::chrono::milliseconds delay, std::function<void()> call) override {
    auto timer = std::make_shared<asio::steady_timer>(shared_.context, delay);
    timer->async_wait([timer, call = std::move(call)](error_code error) {
      if (!error) call();
    });
  }
  Status OnSignal(std::function<void(int)> call) override {
    const int signals = CatchStopSignals();
    error_code failed;
    if (signals >= 0) signals_.assign(signals, failed);
    if (signals < 0 || failed) return ResourceExhausted("cannot catch SIGTERM: " + std::string(kFewDescriptors));
    signals_.async_read_some(asio::buffer(signal_), [this, call = std::move(call)](error_code error, size_t) {
      if (!error) call(signal_[0]);
    });
    return {};
  }
  void Drain() override {
    shared_.draining = true;
    for (Connection* c : Connections()) c->CloseIfIdle();
  }
  size_t num_connections() const override { return shared_.connections.size(); }
  size_t body_bytes() const override { return shared_.bodies.held(); }
  size_t num_busy() const override {
    return static_cast<size_t>(std::count_if(shared_.connections.begin(), shared_.connections.end(),
                                             [](const Connection* c) { return c->busy(); }));
  }

 private:
  // A copy, because closing a connection may destroy it.
  std::vector<Connection*> Connections() const { return {shared_.connections.begin(), shared_.connections.end()}; }

  struct Listener {
    explicit Listener(asio::io_context& context) : acceptor(context) {}
    tcp::acceptor acceptor;
    bool accepting = false;
    int port = -1;
  };

  Status Open(int port, const std::string& flag, Listener* l) {
    error_code error;
    tcp::resolver resolver(shared_.context);
    const std::string& host = shared_.options.host;
    const auto found = resolver.resolve(host, std::to_string(port), error);
    if (error || found.empty())
      return InvalidArgument("--host " + host + " is not an address of this machine: " + error.message());
    const tcp::endpoint endpoint = found.begin()->endpoint();
    l->acceptor.open(endpoint.protocol(), error);
    if (!error) l->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) l->acceptor.bind(endpoint, error);
    if (!error) l->acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      const bool not_here = error == std::errc::address_not_available;
      return ResourceExhausted("cannot listen on " + host + ":" + std::to_string(port) + ": " + error.message() +
                               (not_here ? "; --host takes an address of this machine, or 0.0.0.0 for all of them"
                                         : "; choose another " + flag + " (0: any free one)"));
    }
    l->port = l->acceptor.local_endpoint().port();
    loopback_ = endpoint.address().is_loopback();
    Accept(*l);
    return {};
  }

  void Accept(Listener& l) {
    l.acceptor.async_accept([this, &l](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted || !l.acceptor.is_open()) return;
      l.accepting = false;
      if (error) {
        // Probably out of file descriptors: try again later.
        PostAfter(std::chrono::milliseconds(100), [this, &l] { Accept(l); });
        l.accepting = true;
        return;
      }
      Welcome(std::move(socket), /*metrics=*/&l == &metrics_);
      if (!sweeping_) Sweep();
      Accept(l);
    });
    l.accepting = true;  // set last: if the lines above run out of memory, Run starts the accept
  }

  void Welcome(tcp::socket socket, bool metrics) {
    const HttpOptions& o = shared_.options;
    const size_t open = shared_.connections.size();
    if (open >= o.max_connections + o.num_reserved) return;  // closed without a reply, which costs nothing
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    // Otherwise the kernel buffers megabytes for a client that reads nothing, and the server does not notice.
    socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
    const auto remote = socket.remote_endpoint(ignored);
    std::unique_ptr<TlsStream> tls;
    if (tls_ != nullptr && !metrics) {
      tls = tls_->Accept(socket.native_handle());
      if (tls == nullptr) return;
    }
    std::make_shared<Connection>(shared_, std::move(socket), remote.address().to_string(ignored), std::move(tls),
                                 metrics, /*reserved=*/open >= o.max_connections)
        ->Start();
  }

  void Sweep() {
    sweeping_ = false;
    if (shared_.connections.empty()) return;
    sweeper_.expires_after(std::chrono::seconds(1));
    sweeper_.async_wait([this](error_code error) {
      sweeping_ = false;
      if (error) return;
      const auto now = Clock::now();
      shared_.let_go.Settle();
      for (Connection* c : Connections()) {
        if (!shared_.connections.contains(c)) continue;
        const auto connection = c->shared_from_this();
        connection->Guard([&] { connection->Sweep(now); });
      }
      Sweep();
    });
    sweeping_ = true;
  }

  Shared shared_;
  std::unique_ptr<TlsContext> tls_;  // null: plain HTTP
  Listener main_, metrics_;
  asio::steady_timer sweeper_;
  asio::posix::stream_descriptor signals_;
  std::array<char, 1> signal_{};
  bool sweeping_ = false, loopback_ = false;
};

}  // namespace

std::string_view HttpRequest::Header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpOptions& options, Gate gate, Handler handler,
                                                       DoneFn done) {
  auto server = std::make_unique<HttpServerImpl>(options, std::move(gate), std::move(handler), std::move(done));
  DSV4_RETURN_IF_ERROR(server->Open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

std::string LowerAscii(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

}  // namespace dsv4::server
