// Listening, accepting, time-outs, signals.
#include <algorithm>
#include <csignal>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "http_connection.h"

namespace dsv4::server {

namespace {

using namespace http_internal;

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
