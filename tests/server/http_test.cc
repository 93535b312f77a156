// What a connection may hold and how long it may take, against a server on a free port.
#include "server/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace dsv4::server {

namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxBody = 100000;

class HttpClient {
 public:
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

  // False: the server takes no more.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // What comes until the server ends the connection, or until `time` is over.
  std::string Read(milliseconds time = milliseconds(20000), size_t most = std::string::npos) {
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

std::string StatusLine(const std::string& reply) { return reply.substr(0, 12); }

class Http : public ::testing::Test {
 protected:
  ~Http() override {
    if (thread_.joinable()) {
      server_->Stop();
      thread_.join();
    }
  }

  void Start(HttpOptions options = {}) {
    options.port = 0;
    server_ = std::move(HttpServer::Listen(
                            options, [this](const HttpRequest& head) { return Admit(head); },
                            [this](ExchangePtr e) { Handle(e); },
                            [this](const HttpRequest&, const HttpDone& done) {
                              const std::lock_guard lock(mutex_);
                              done_.push_back(done);
                              changed_.notify_all();
                            }))
                  .value();
    thread_ = std::thread([this] { server_->Run(); });
  }

  HttpVerdict Admit(const HttpRequest& head) {
    if (head.reserved && head.path != "/health")
      return {.refusal = HttpReply{.status = 503, .type = "", .body = "full"}};
    if (head.path == "/closed") return {.refusal = HttpReply{.status = 401, .type = "", .body = "no"}};
    return {.refusal = {}, .max_body_bytes = kMaxBody};
  }

  void Handle(const ExchangePtr& e) {
    ++num_handled_;
    const HttpRequest& r = e->request();
    if (r.path == "/memory") throw std::bad_alloc();
    if (r.path == "/hold") {
      held_ = e;  // until the test drops it
    } else if (r.path == "/stream") {
      e->StartStream(200, "text/plain");
      for (int i = 0; i < 64; ++i) e->Write(std::string(64 << 10, 'x'));
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
  std::atomic<int> num_handled_{0}, num_pressed_{0};
  ExchangePtr held_;
};

constexpr std::string_view kChunked = "POST /echo HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";

// ---- Framing

TEST_F(Http, AChunkExtensionOrATrailerThatNeverEndsIsRefused) {
  Start();
  const std::string forever(4 << 20, 'x');
  for (const std::string& begin : {std::string("1;"), std::string("0\r\nx: "), std::string("0;")}) {
    HttpClient client(server_->port());
    client.Send(std::string(kChunked) + begin);
    client.Send(forever);  // cut short by the server
    const std::string reply = client.Read();
    EXPECT_TRUE(reply.empty() || StatusLine(reply) == "HTTP/1.1 431") << begin << reply.substr(0, 100);
    EXPECT_EQ(WaitForDone(num_done() == 0 ? 1 : num_done()).status, 431);
  }
  EXPECT_EQ(num_handled_, 0);
}

TEST_F(Http, ManySmallExtensionsAndTrailerLinesCount) {
  Start();
  std::string chunks;
  for (int i = 0; i < 200; ++i) chunks += "1;" + std::string(1000, 'x') + "\r\na\r\n";
  EXPECT_EQ(StatusLine(Ask(std::string(kChunked) + chunks + "0\r\n\r\n")), "HTTP/1.1 431");
  // A chunk for every byte is all right.
  chunks.clear();
  for (int i = 0; i < 50000; ++i) chunks += "1\r\na\r\n";
  const std::string reply = Ask(std::string(kChunked) + chunks + "0\r\nx: y\r\n\r\n");
  EXPECT_EQ(StatusLine(reply), "HTTP/1.1 200");
  EXPECT_TRUE(reply.ends_with(std::string(50000, 'a')));
}

TEST_F(Http, HeaderLinesAreCountedAndHostIsNamedOnce) {
  Start();
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "a: b\r\n";
  EXPECT_EQ(StatusLine(Ask("GET / HTTP/1.1\r\n" + lines + "\r\n")), "HTTP/1.1 431");
  EXPECT_EQ(StatusLine(Ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")), "HTTP/1.1 400");
}

TEST_F(Http, WhatFollowsARefusalIsNotRead) {
  Start();
  HttpClient client(server_->port());
  std::string many = "GET /x HTTP/9.9\r\n\r\n";
  for (int i = 0; i < 2000; ++i) many += "GET /x HTTP/9.9\r\n\r\n";
  client.Send(many);
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
    if (!client.Send(many.substr(0, 100))) break;  // goes on for as long as the server listens
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  EXPECT_EQ(num_done(), 1u);
}

// ---- The gate and the budget

TEST_F(Http, TheGateDecidesBeforeTheBody) {
  Start();
  HttpClient client(server_->port());
  client.Send("POST /closed HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n");
  const std::string reply = client.Read();  // no byte of a body was sent
  EXPECT_EQ(StatusLine(reply), "HTTP/1.1 401");
  EXPECT_EQ(reply.find("100 Continue"), std::string::npos);
  EXPECT_NE(reply.find("Connection: close"), std::string::npos);
  EXPECT_EQ(num_handled_, 0);
  EXPECT_EQ(StatusLine(Ask("POST /echo HTTP/1.1\r\nContent-Length: 100001\r\n\r\n")), "HTTP/1.1 413");
}

TEST_F(Http, ARefusedRequestWithoutABodyKeepsItsConnection) {
  Start();
  const std::string reply =
      Ask("GET /closed HTTP/1.1\r\n\r\nGET /echo HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(StatusLine(reply), "HTTP/1.1 401");
  EXPECT_NE(reply.find("HTTP/1.1 200"), std::string::npos);
  EXPECT_NE(reply.find("\r\nDate: "), std::string::npos);
}

TEST_F(Http, BodiesHaveOneBudget) {
  Start({.max_body_total = 150000});
  const std::string head = "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
  HttpClient first(server_->port());
  first.Send(head + std::string(99999, 'a'));
  for (int i = 0; i < 2000 && server_->body_bytes() < 99999; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_GE(server_->body_bytes(), 99999u);
  const std::string refused = Ask(head + std::string(100000, 'b'));
  EXPECT_EQ(StatusLine(refused), "HTTP/1.1 503");
  EXPECT_NE(refused.find("--max-body-total"), std::string::npos);
  first.Send("a");
  EXPECT_EQ(StatusLine(first.Read()), "HTTP/1.1 200");
  EXPECT_EQ(server_->body_bytes(), 0u);
  EXPECT_EQ(StatusLine(Ask(head + std::string(100000, 'c'))), "HTTP/1.1 200");
}

TEST_F(Http, AnAnnouncedBodyTakesNothingBeforeItArrives) {
  Start({.max_body_total = 150000});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_->port()));
    clients.back()->Send("POST /echo HTTP/1.1\r\nContent-Length: 100000\r\n\r\na");
  }
  EXPECT_EQ(StatusLine(Ask("POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 1\r\n\r\na")), "HTTP/1.1 200");
  EXPECT_LT(server_->body_bytes(), 1000u);
}

TEST_F(Http, RequestsThatNobodyReadsTheRepliesOfWait) {
  Start();
  HttpClient client(server_->port(), 4096);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "GET /large HTTP/1.1\r\n\r\n";  // 100 MB of replies
  client.Send(many);
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_LT(num_handled_, 20);  // what the sockets hold
}

TEST_F(Http, RequestsBehindOneWaitAndAreAnsweredInOrder) {
  Start();
  constexpr int kRequests = 400;
  const std::string padding(90000, '.');
  HttpClient client(server_->port(), 4096);
  std::atomic<int> num_sent{0};
  std::thread sender([&] {  // 36 MB, which no socket holds
    for (int i = 0; i < kRequests; ++i) {
      const std::string body = std::to_string(i) + padding;
      if (!client.Send("POST /echo HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body))
        break;
      ++num_sent;
    }
  });
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_LT(num_sent, kRequests);
  EXPECT_LT(server_->body_bytes(), 2 * padding.size());  // of one request
  std::string replies;
  size_t at = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::string expected = "\r\n\r\n" + std::to_string(i) + ".";
    size_t found = std::string::npos;
    while ((found = replies.find("\r\n\r\n", at)) == std::string::npos || replies.size() < found + expected.size()) {
      const std::string more = client.Read(milliseconds(20000), 65536);
      if (more.empty()) break;
      replies += more;
    }
    ASSERT_EQ(replies.substr(found, expected.size()), expected) << "reply " << i;
    at = found + expected.size();
  }
  sender.join();
  EXPECT_EQ(num_sent, kRequests);
  EXPECT_EQ(num_handled_, kRequests);
}

TEST_F(Http, AClientThatLeavesIsNoticedBehindRequestsThatAreNotRead) {
  Start();
  HttpClient client(server_->port());
  // More than is read behind the first request, less than the sockets hold.
  client.Send("GET /hold HTTP/1.1\r\n\r\n" + std::string(110000, ' '));
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_EQ(num_done(), 0u);
  client.Leave();
  EXPECT_EQ(WaitForDone().status, 499);
  EXPECT_EQ(server_->num_busy(), 0u);
  held_.reset();
}

// Nothing but its end tells a client of HTTP/1.0 that a stream is complete.
TEST_F(Http, AnOldClientsStreamEndsAtOnce) {
  Start();
  HttpClient client(server_->port());
  client.Send("GET /later HTTP/1.0\r\n\r\n");
  EXPECT_EQ(StatusLine(client.Read(milliseconds(5000), 12)), "HTTP/1.1 200");
  client.Read(milliseconds(200));  // all that is written is here
  held_->FinishStream();
  held_.reset();
  client.Read(milliseconds(5000));
  EXPECT_TRUE(client.ended());
}

// ---- Time

TEST_F(Http, AHeaderHasAnAbsoluteTime) {
  Start({.header_timeout = milliseconds(1000)});
  HttpClient client(server_->port());
  const auto begin = std::chrono::steady_clock::now();
  std::string reply;
  client.Send("GET / HTTP/1.1\r\n");
  while (reply.empty() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
    client.Send("a: b\r\n");  // never silent
    reply = client.Read(milliseconds(100), 12);
  }
  EXPECT_EQ(reply, "HTTP/1.1 408");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(Http, ABodyMustKeepUpItsRate) {
  Start({.body_timeout = milliseconds(1000), .min_rate = 10000});
  const std::string head = "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
  std::string reply;
  HttpClient slow(server_->port());
  slow.Send(head);
  for (int i = 0; i < 100 && reply.empty(); ++i) {
    slow.Send(std::string(100, 'a'));
    reply = slow.Read(milliseconds(100), 12);
  }
  EXPECT_EQ(reply, "HTTP/1.1 408");
  HttpClient steady(server_->port());
  steady.Send(head);
  for (int i = 0; i < 20; ++i) {
    steady.Send(std::string(5000, 'a'));
    std::this_thread::sleep_for(milliseconds(120));
  }
  EXPECT_EQ(StatusLine(steady.Read()), "HTTP/1.1 200");
}

TEST_F(Http, AReaderMustKeepUpTheRate) {
  Start({.write_timeout = milliseconds(1000), .min_rate = 100000, .max_unsent_bytes = 64 << 20});
  HttpClient client(server_->port(), 4096);
  client.Send("GET /stream HTTP/1.1\r\n\r\n");
  const auto begin = std::chrono::steady_clock::now();
  while (num_done() == 0 || server_->num_busy() > 0) {
    client.Read(milliseconds(50), 500);  // some 10 kB a second
    if (client.ended() || std::chrono::steady_clock::now() - begin > std::chrono::seconds(15)) break;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(server_->num_busy(), 0u);
}

TEST_F(Http, AStreamThatNobodyReadsIsToldAndThenDropped) {
  Start({.pressure_bytes = 256 << 10, .max_unsent_bytes = 8 << 20});
  HttpClient patient(server_->port(), 4096);
  patient.Send("GET /endless HTTP/1.1\r\n\r\n");
  for (int i = 0; i < 2000 && num_pressed_ == 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(num_pressed_, 1);  // 4 MiB wait
  EXPECT_EQ(num_done(), 0u);
  server_->Post([this] {
    for (int i = 0; i < 128; ++i) held_->Write(std::string(64 << 10, 'x'));  // 12 MiB
  });
  EXPECT_EQ(WaitForDone().cut, "slow reader");
  server_->Post([this] { held_.reset(); });
}

TEST_F(Http, ASilentConnectionIsClosed) {
  Start({.keep_alive = milliseconds(1000)});
  HttpClient fresh(server_->port()), used(server_->port());
  used.Send("GET /echo HTTP/1.1\r\n\r\n");
  EXPECT_EQ(used.Read(milliseconds(5000), 12), "HTTP/1.1 200");
  const auto begin = std::chrono::steady_clock::now();
  fresh.Read();
  used.Read();
  EXPECT_TRUE(fresh.ended() && used.ended());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

TEST_F(Http, ConnectionsBeyondAllPlacesAreClosed) {
  Start({.max_connections = 3, .num_reserved = 2, .keep_alive = milliseconds(60000)});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<HttpClient>(server_->port()));
  for (int i = 5; i < 20; ++i) {
    EXPECT_EQ(clients[static_cast<size_t>(i)]->Read(milliseconds(5000)), "");
    EXPECT_TRUE(clients[static_cast<size_t>(i)]->ended());
  }
}

TEST_F(Http, HealthIsReachedWhenAllPlacesAreTaken) {
  Start({.max_connections = 3, .num_reserved = 2, .reserved_timeout = milliseconds(1000)});
  std::vector<std::unique_ptr<HttpClient>> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(std::make_unique<HttpClient>(server_->port()));
    held.back()->Send("GET /echo HTTP/1.1\r\n\r\n");
    EXPECT_EQ(held.back()->Read(milliseconds(5000), 12), "HTTP/1.1 200");
  }
  EXPECT_EQ(StatusLine(Ask("GET /health HTTP/1.1\r\n\r\n")), "HTTP/1.1 200");
  EXPECT_EQ(StatusLine(Ask("GET /echo HTTP/1.1\r\n\r\n")), "HTTP/1.1 503");
  EXPECT_EQ(StatusLine(Ask("")), "HTTP/1.1 503");  // a silent one does not keep its place
}

// ---- Memory

TEST_F(Http, ARequestThatFindsNoMemoryGetsA503AndTheServerGoesOn) {
  Start();
  EXPECT_EQ(StatusLine(Ask("GET /memory HTTP/1.1\r\n\r\n")), "HTTP/1.1 503");
  EXPECT_EQ(WaitForDone().cut, "out of memory");
  EXPECT_EQ(StatusLine(Ask("GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n")), "HTTP/1.1 200");
}

TEST_F(Http, AHandlerOnAnotherThreadMayRunOutOfMemory) {
  Start();
  HttpClient client(server_->port());
  client.Send("GET /hold HTTP/1.1\r\n\r\n");
  for (int i = 0; i < 2000 && num_handled_ == 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  std::this_thread::sleep_for(milliseconds(50));
  ASSERT_NE(held_, nullptr);
  held_->OutOfMemory();
  held_.reset();
  EXPECT_EQ(StatusLine(client.Read()), "HTTP/1.1 503");
}

// ---- The end

TEST_F(Http, WhileDrainingNewConnectionsAreAnswered) {
  Start();
  HttpClient idle(server_->port());
  idle.Send("GET /echo HTTP/1.1\r\n\r\n");
  EXPECT_EQ(idle.Read(milliseconds(5000), 12), "HTTP/1.1 200");
  server_->Post([this] { server_->Drain(); });
  idle.Read();
  EXPECT_TRUE(idle.ended());
  const std::string reply = Ask("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(StatusLine(reply), "HTTP/1.1 200");
  EXPECT_NE(reply.find("Connection: close"), std::string::npos);
}

}  // namespace

}  // namespace dsv4::server
