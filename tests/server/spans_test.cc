#include "server/spans.h"

#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "gtest/gtest.h"
#include "server/trace.h"

namespace dsv4::server {
namespace {

using boost::asio::ip::tcp;

// Takes connections, and never answers.
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
  // 4,096 wait at most, and at most 512 are on their way.
  EXPECT_GE((*exporter)->counts().dropped, 10000u - 4096 - 512);
  EXPECT_EQ((*exporter)->counts().sent, 0u);
  collector.reset();  // what is on its way fails at once
}

}  // namespace
}  // namespace dsv4::server
