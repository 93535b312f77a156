#include "server/observe/spans.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

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

}  // namespace
}  // namespace dsv4::server
