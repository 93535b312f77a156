#include "server/observe/spans.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "gtest/gtest.h"
#include "server/observe/trace.h"
#include "support/allocations.h"

namespace dsv4::server {
namespace {

using boost::asio::ip::tcp;

// Accepts connections and never answers.
struct SilentCollector {
  boost::asio::io_context context;
  tcp::acceptor acceptor{context, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(acceptor.local_endpoint().port()); }
};

TEST(SpanExporter, KeepsABoundedNumberForACollectorThatDoesNotTakeThem) {
  auto collector = std::make_unique<SilentCollector>();
  auto exporter = SpanExporter::Create(collector->endpoint(), "model", nullptr);
  ASSERT_TRUE(exporter.ok()) << exporter.status().message();
  HttpRequest request{.method = "POST", .path = "/tokenize"};
  request.note = std::make_shared<RequestNote>();
  request.note->trace = NewTrace();
  for (int i = 0; i < 10000; ++i) (*exporter)->Add(request, {.status = 200, .complete = true});
  // At most 4,096 wait and at most 512 are being sent.
  EXPECT_GE((*exporter)->counts().dropped, 10000u - 4096 - 512);
  EXPECT_EQ((*exporter)->counts().sent, 0u);
  collector.reset();  // the pending batch fails at once
}

TEST(SpanExporter, AThreadWithoutMemoryDropsAndGoesOn) {
  test::new_threads_allocations = 0;
  auto exporter = SpanExporter::Create("http://127.0.0.1:1", "model", nullptr);
  HttpRequest request{.method = "POST", .path = "/tokenize"};
  request.note = std::make_shared<RequestNote>();
  request.note->trace = NewTrace();
  for (uint64_t i = 1; i <= 2; ++i) {
    (*exporter)->Add(request, {.status = 200, .complete = true});
    for (int n = 0; n < 10000 && (*exporter)->counts().dropped < i; ++n)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ((*exporter)->counts().dropped, i);
  }
  test::new_threads_allocations = -1;
}

// Takes one connection, sends `answer` again and again until the exporter closes, and counts what was taken.
class EndlessCollector {
 public:
  explicit EndlessCollector(const std::string& answer)
      : thread_([this, answer] {
          tcp::socket peer(collector_.context);
          collector_.acceptor.accept(peer);
          boost::system::error_code error;
          while (!error && taken_ < kMost) taken_ += peer.write_some(boost::asio::buffer(answer), error);
        }) {}
  ~EndlessCollector() { thread_.join(); }
  std::string endpoint() const { return collector_.endpoint(); }
  size_t taken() const { return taken_; }

  static constexpr size_t kMost = size_t{256} << 20;

 private:
  SilentCollector collector_;
  std::atomic<size_t> taken_ = 0;
  std::thread thread_;
};

// No part of an answer is kept, and the connection ends at once.
TEST(SpanExporter, ReadsTheBeginningOfAnAnswerOnly) {
  const std::string letters(1 << 20, 'x'), blanks(1 << 20, ' ');
  for (const std::string& answer : {letters, blanks, "HTTP/1.1 " + letters, "HTTP/1.1 200 OK" + letters}) {
    EndlessCollector collector(answer);
    std::string error;
    auto exporter = SpanExporter::Create(collector.endpoint(), "model", [&](const std::string& line) { error = line; });
    ASSERT_TRUE(exporter.ok()) << exporter.status().message();
    HttpRequest request{.method = "POST", .path = "/tokenize"};
    request.note = std::make_shared<RequestNote>();
    request.note->trace = NewTrace();
    (*exporter)->Add(request, {.status = 200, .complete = true});
    exporter->reset();  // waits for the answer
    const bool is_http = answer.starts_with("HTTP/1.1 200");
    EXPECT_EQ(error.empty(), is_http) << answer.substr(0, 20);
    EXPECT_EQ(error.find("--otlp-endpoint") != std::string::npos, !is_http) << error;
    EXPECT_LT(collector.taken(), size_t{32} << 20);  // what the sockets hold
  }
}

}  // namespace
}  // namespace dsv4::server
