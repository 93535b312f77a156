// HttpServer of dsv4/server.h: a server that a program starts and stops.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dsv4/server.h"
#include "gtest/gtest.h"
#include "server/fake_engine.h"
#include "server/nano_tokenizer.h"

namespace dsv4::server {
namespace {

volatile sig_atomic_t own_signals = 0;
void OwnHandler(int) { own_signals = own_signals + 1; }

// Sends a request and returns all of the reply. "": no connection.
std::string Fetch(int port, const std::string& request) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string reply;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
    char piece[4096];
    for (ssize_t n = 0; (n = ::read(fd, piece, sizeof(piece))) > 0;) reply.append(piece, static_cast<size_t>(n));
  }
  ::close(fd);
  return reply;
}

std::string Get(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
}

std::string Complete(int max_tokens) {
  const std::string body = R"({"prompt": [200, 201], "temperature": 0, "max_tokens": )" + std::to_string(max_tokens) +
                           "}";
  return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

class EmbeddedServerTest : public ::testing::Test {
 protected:
  ServerOptions Options() {
    ServerOptions options;
    options.port = 0;
    options.kv_budget_bytes = int64_t{1} << 40;
    options.on_log = [this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    };
    return options;
  }
  std::unique_ptr<dsv4::HttpServer> Start(const ServerOptions& options) {
    auto started = dsv4::HttpServer::Start(engine_, NanoTokenizer(), options);
    EXPECT_TRUE(started.ok()) << started.status().message();
    return started.ok() ? std::move(*started) : nullptr;
  }

  FakeEngine engine_{NanoTokenizer().vocab_size()};
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_F(EmbeddedServerTest, TwentyStartsAndStopsBesideAHandlerOfTheProcess) {
  struct sigaction own = {}, before = {}, found = {};
  own_signals = 0;
  own.sa_handler = OwnHandler;
  sigemptyset(&own.sa_mask);
  ASSERT_EQ(::sigaction(SIGTERM, &own, &before), 0);
  for (int i = 0; i < 20; ++i) {
    const auto server = Start(Options());
    ASSERT_NE(server, nullptr);
    EXPECT_GT(server->port(), 0);
    EXPECT_NE(Fetch(server->port(), Complete(3)).find("200 OK"), std::string::npos);
    ASSERT_EQ(::raise(SIGTERM), 0);
    EXPECT_NE(Fetch(server->port(), Get("/health")).find("200 OK"), std::string::npos)
        << "the signal is not the server's";
    const int port = server->port();
    server->Stop();
    EXPECT_TRUE(server->Wait().ok());
    EXPECT_EQ(Fetch(port, Get("/health")), "");
  }
  EXPECT_EQ(own_signals, 20);
  ::sigaction(SIGTERM, &before, &found);
  EXPECT_EQ(found.sa_handler, &OwnHandler);
  ::sigaction(SIGINT, nullptr, &found);
  EXPECT_EQ(found.sa_handler, SIG_DFL);
  EXPECT_EQ(engine_.kv_bytes(), 0);
}

TEST_F(EmbeddedServerTest, DrainFinishesTheRunningRequests) {
  engine_.before_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  auto server = Start(Options());
  std::string reply;
  std::thread client([&] { reply = Fetch(server->port(), Complete(200)); });
  for (int i = 0; i < 5000 && engine_.live_sessions == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server->Drain();
  EXPECT_TRUE(server->Wait().ok());
  client.join();
  EXPECT_NE(reply.find("200 OK"), std::string::npos);
  EXPECT_NE(reply.find("\"completion_tokens\":200"), std::string::npos) << reply.substr(0, 600);
  server.reset();  // its log has written all lines
  const std::lock_guard lock(mutex_);
  ASSERT_FALSE(lines_.empty());
  EXPECT_NE(lines_.back().find("stopped"), std::string::npos) << lines_.back();
}

TEST_F(EmbeddedServerTest, StopEndsRunningRequestsWithAnError) {
  engine_.before_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  const auto server = Start(Options());
  std::string reply;
  std::thread client([&] { reply = Fetch(server->port(), Complete(90000)); });
  for (int i = 0; i < 5000 && engine_.live_sessions == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server->Drain();
  const auto begin = std::chrono::steady_clock::now();
  server->Stop();  // shortens the time of Drain
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  client.join();
  EXPECT_NE(reply.find("503"), std::string::npos) << reply.substr(0, 300);
  EXPECT_EQ(engine_.live_sessions, 0);
}

TEST_F(EmbeddedServerTest, APortInUseIsAnError) {
  const auto server = Start(Options());
  ServerOptions same = Options();
  same.port = server->port();
  FakeEngine engine(NanoTokenizer().vocab_size());
  EXPECT_EQ(dsv4::HttpServer::Start(engine, NanoTokenizer(), same).status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dsv4::server
