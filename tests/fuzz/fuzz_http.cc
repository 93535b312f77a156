// Any bytes on a connection: framing, headers, pipelining, splits. The server answers or closes the connection. It does
// not crash.
//   byte 0: size of a piece;  then the bytes that the client sends
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "fuzz/require.h"
#include "server/http/http.h"

namespace {

using namespace dsv4::server;
using dsv4::fuzz::Require;

// Echoes bodies, whole or as a stream (/stream). Refuses /refuse and drops /drop.
struct EchoServer {
  EchoServer() {
    server = std::move(HttpServer::Listen(
                           {.port = 0,
                            .max_header_bytes = 2000,
                            .max_header_lines = 40,
                            .max_framing_bytes = 3000,
                            .max_body_total = 20000,
                            .max_connections = 50},
                           [](const HttpRequest& head) {
                             Require(!head.method.empty() && head.headers.size() <= 40 && head.body.empty());
                             if (head.path == "/refuse")
                               return HttpVerdict{.refusal = HttpReply{.status = 403, .type = "", .body = "no"}};
                             return HttpVerdict{.refusal = {}, .max_body_bytes = 5000};
                           },
                           [](ExchangePtr e) {
                             const HttpRequest& r = e->request();
                             Require(!r.method.empty() && r.id.size() <= 128 && r.body.size() <= 5000);
                             (void)r.Header("x-api-key");
                             if (r.path == "/drop") return;
                             if (r.path != "/stream")
                               return e->Respond(200, "text/plain", r.body, {{"X-Query", r.query.substr(0, 0)}});
                             e->StartStream(200, "text/event-stream");
                             for (size_t i = 0; i < r.body.size(); i += 7) e->Write(r.body.substr(i, 7));
                             e->FinishStream();
                           },
                           [](const HttpRequest&, const HttpDone& done) {
                             Require(done.status >= 200 && done.status < 600);
                           }))
                 .value();
    thread = std::thread([this] { server->Run(); });
    thread.detach();
  }
  std::unique_ptr<HttpServer> server;
  std::thread thread;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static EchoServer& echo = *new EchoServer;
  if (size < 2) return 0;
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(echo.server->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Require(fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));

  const size_t piece = 1 + data[0] % 64;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (int i = 0; i < 8 && !rest.empty(); ++i) {
    const size_t n = i == 7 ? rest.size() : std::min(piece, rest.size());
    if (::send(fd, rest.data(), n, MSG_NOSIGNAL) < 0) break;
    rest.remove_prefix(n);
  }
  // Waits briefly, because an incomplete request gets no reply.
  std::string reply;
  char buffer[4096];
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  while (::poll(&ready, 1, reply.empty() ? 3 : 0) > 0) {
    const ssize_t n = ::recv(fd, buffer, sizeof(buffer), 0);
    if (n <= 0) break;
    reply.append(buffer, static_cast<size_t>(n));
  }
  Require(reply.empty() || reply.starts_with("HTTP/1.1 "));
  ::close(fd);
  return 0;
}
