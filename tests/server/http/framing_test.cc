// Where a request ends, and which host it names.
#include <mutex>
#include <string>

#include "server/http/http_fixture.h"

namespace dsv4::server {

namespace {

using namespace std::string_literals;

// The gate checks one host: that of an absolute target, otherwise that of the header.
TEST_F(Http, TheHostOfAnAbsoluteTargetCounts) {
  Start();
  const auto host_of = [&](const std::string& target, const std::string& headers) {
    {
      const std::lock_guard lock(mutex_);
      hosts_.clear();
    }
    EXPECT_EQ(StatusLine(Ask("GET " + target + " HTTP/1.1\r\n" + headers + "Connection: close\r\n\r\n")),
              "HTTP/1.1 200");
    const std::lock_guard lock(mutex_);
    return hosts_.size() == 1 ? hosts_[0] : "not asked once";
  };
  for (const char* headers : {"", "Host: localhost\r\n"}) {
    for (const char* target :
         {"http://evil.example/x", "HTTPS://evil.example/x", "http://evil.example", "http://evil.example?x"})
      EXPECT_EQ(host_of(target, headers), "evil.example") << target << headers;
    EXPECT_EQ(host_of("http://localhost@evil.example:80/x", headers), "localhost@evil.example:80");
  }
  EXPECT_EQ(host_of("/x", "Host: localhost\r\n"), "localhost");
  EXPECT_EQ(host_of("/http://evil.example/", "Host: localhost\r\n"), "localhost");
  for (const char* target : {"http:///x", "https://", "http://?x"})
    EXPECT_EQ(StatusLine(Ask("GET " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\n\r\n")), "HTTP/1.1 400")
        << target;
}

// The end of such a body is uncertain. The next bytes could be its content, so they are no request.
TEST_F(Http, AfterAFramingFaultNothingIsARequest) {
  Start();
  const std::string next = "0\r\n\r\nGET /next HTTP/1.1\r\n\r\n";
  for (const char* version : {"HTTP/1.1", "HTTP/1.0"}) {
    for (const std::string& headers :
         {"Transfer-Encoding:\r\n"s, "Transfer-Encoding: \t\r\n"s, "Transfer-Encoding:\r\nContent-Length: 5\r\n"s,
          "Content-Length: 5\r\nTransfer-Encoding:\r\n"s, "Transfer-Encoding:\r\nTransfer-Encoding: chunked\r\n"s,
          "Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n"s,
          "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"s,
          "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"s, "Transfer-Encoding: ,\r\n"s,
          "Transfer-Encoding: identity\r\n"s, "Transfer-Encoding: identity\r\nContent-Length: 5\r\n"s,
          "Transfer-Encoding: chunked, identity\r\n"s, "Transfer-Encoding: \"chunked\"\r\n"s,
          "Transfer-Encoding : chunked\r\n"s, "Content-Length: 5\r\nContent-Length: 6\r\n"s, "Content-Length: +5\r\n"s,
          "Content-Length:\r\n"s, "Content-Length: 5 5\r\n"s}) {
      const std::string reply = Ask("POST /echo " + std::string(version) + "\r\nConnection: keep-alive\r\n" + headers +
                                    "\r\n" + next);
      const std::string status = StatusLine(reply);
      EXPECT_TRUE(status == "HTTP/1.1 400" || status == "HTTP/1.1 501") << headers << reply;
      EXPECT_EQ(reply.find("HTTP/1.1", 1), std::string::npos) << headers << reply;
      EXPECT_NE(reply.find("Connection: close"), std::string::npos) << headers << reply;
    }
  }
  EXPECT_EQ(StatusLine(Ask("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")), "HTTP/1.1 400");
  EXPECT_EQ(num_handled_, 0);
}

}  // namespace

}  // namespace dsv4::server
