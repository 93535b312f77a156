// An HTTP server on a free port whose paths choose how a request is handled, and a client that can send anything.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/http/http.h"
#include "server/observe/request_note.h"

namespace dsv4::server {

inline constexpr size_t kMaxBody = 100000;
inline constexpr std::chrono::milliseconds kPatience{20000};  // ends a test that would hang

class HttpClient {
 public:
  using milliseconds = std::chrono::milliseconds;

  explicit HttpClient(int port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~HttpClient() { ::close(fd_); }
  HttpClient(const HttpClient&) = delete;

  // Returns false if the server takes no more.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Returns what arrives until the server ends the connection or `time` is over.
  std::string Read(milliseconds time = kPatience, size_t most = std::string::npos) {
    std::string text;
    const auto end = std::chrono::steady_clock::now() + time;
    while (text.size() < most) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now()).count();
      pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
      if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left)) <= 0) break;
      char buffer[4096];
      const ssize_t n = ::recv(fd_, buffer, std::min(sizeof(buffer), most - text.size()), 0);
      if (n <= 0) {
        ended_ = true;
        break;
      }
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  bool ended() const { return ended_; }
  void Leave() { ::shutdown(fd_, SHUT_RDWR); }

 private:
  int fd_;
  bool ended_ = false;
};

inline std::string StatusLine(const std::string& reply) { return reply.substr(0, 12); }

class Http : public ::testing::Test {
 protected:
  ~Http() override {
    Stop();
    held_.reset();
    kept_.clear();
    server_.reset();  // its destructor reports the connections that it closes
  }
  void Stop() {
    if (!thread_.joinable()) return;
    server_->Stop();
    thread_.join();
  }
  void Restart(const HttpOptions& options) {
    Stop();
    Start(options);
  }

  void Start(HttpOptions options = {}) {
    options.port = 0;
    server_ = std::move(HttpServer::Listen(
                            options, [this](const HttpRequest& head) { return Admit(head); },
                            [this](ExchangePtr e) { Handle(e); },
                            [this](const HttpRequest& request, const HttpDone& done) {
                              const std::lock_guard lock(mutex_);
                              longest_method_ = std::max(longest_method_, request.method.size());
                              done_.push_back(done);
                              changed_.notify_all();
                            }))
                  .value();
    thread_ = std::thread([this] { server_->Run(); });
  }

  HttpVerdict Admit(const HttpRequest& head) {
    {
      const std::lock_guard lock(mutex_);
      hosts_.emplace_back(head.Header("host"));
    }
    if (head.reserved && head.path != "/health")
      return {.refusal = HttpReply{.status = 503, .type = "", .body = "full"}};
    if (head.path == "/closed") return {.refusal = HttpReply{.status = 401, .type = "", .body = "no"}};
    const auto note = notes_.extract(head.path);
    return {.refusal = {}, .max_body_bytes = kMaxBody, .note = note.empty() ? nullptr : note.mapped()};
  }

  void Handle(const ExchangePtr& e) {
    ++num_handled_;
    const HttpRequest& r = e->request();
    if (r.path == "/memory") throw std::bad_alloc();
    if (r.path == "/hold") {
      held_ = e;  // until the test drops it
    } else if (r.path == "/keep") {
      kept_.push_back(e);
    } else if (r.path == "/stream") {
      e->StartStream(200, "text/plain");
      for (int i = 0; i < 64; ++i) e->Write(std::string(64 << 10, 'x'));
      e->FinishStream();
    } else if (r.path == "/short") {
      e->StartStream(200, "text/plain");
      e->Write("x");
      e->FinishStream();
    } else if (r.path == "/events") {  // two large events at once, and the end
      e->StartStream(200, "text/plain");
      for (int i = 0; i < 2; ++i) e->Write(std::string(9 << 20, 'x'));
      e->Write("the end");
      e->FinishStream();
    } else if (r.path == "/endless") {
      e->OnPressure([this](bool on) { num_pressed_ += on ? 1 : 0; });
      e->StartStream(200, "text/plain");
      for (int i = 0; i < 64; ++i) e->Write(std::string(64 << 10, 'x'));
      held_ = e;
    } else if (r.path == "/later") {
      e->StartStream(200, "text/plain");
      held_ = e;
    } else if (r.path == "/large") {
      e->Respond(200, "text/plain", std::string(1 << 20, 'x'));
    } else {
      e->Respond(200, "text/plain", r.body);
    }
  }

  HttpDone WaitForDone(size_t count = 1) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return done_.size() >= count; }));
    return done_.size() < count ? HttpDone{} : done_[count - 1];
  }
  size_t num_done() {
    const std::lock_guard lock(mutex_);
    return done_.size();
  }
  // Returns the result of `call` on the I/O thread.
  template <typename Call>
  auto OnIoThread(Call call) {
    std::promise<decltype(call())> found;
    server_->Post([&] { found.set_value(call()); });
    return found.get_future().get();
  }
  std::string Ask(std::string_view request) {
    HttpClient client(server_->port());
    client.Send(request);
    return client.Read();
  }

  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpDone> done_;
  size_t longest_method_ = 0;
  std::vector<std::string> hosts_;  // of the requests that the gate saw
  std::atomic<int> num_handled_{0}, num_pressed_{0};
  ExchangePtr held_;
  std::vector<ExchangePtr> kept_;                              // all exchanges of a path
  std::map<std::string, std::shared_ptr<RequestNote>> notes_;  // by path, for the next request; set before Start
};

}  // namespace dsv4::server
