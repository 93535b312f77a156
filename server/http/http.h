// HTTP/1.1 over TCP: one I/O thread for any number of connections. Independent of models.
//
//   auto http = HttpServer::Listen({.host = "127.0.0.1", .port = 8000}, gate, [](ExchangePtr e) { e->Respond(200, ...);
//   }, done);
//   (*http)->Run();   // until Stop()
//
// The gate sees a request's header and decides before any of its body is read or requested. A request holds at most the
// limits of HttpOptions. All requests together hold at most max_body_total for bodies, and all replies at most
// max_unsent_total of unsent bytes. A connection serves one request at a time. It reads the next request after the
// client has taken the reply.
//
// Every Exchange must get a reply: Respond, or StartStream, Write ..., FinishStream. An exchange that is dropped
// without a reply is answered with 500. The server notices at once that a client has left, even while nothing is being
// written. If more requests wait after the current one, or if they fill the sockets when the reply is written, it
// notices within a second. A client that half-closes its connection counts as having left, because the two look the
// same.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/status.h"

namespace dsv4::server {

struct RequestNote;

using HeaderList = std::vector<std::pair<std::string, std::string>>;

// Lowers A to Z only, whatever the locale is: for names of hosts and headers.
std::string LowerAscii(std::string_view text);

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;        // 0: any free one
  int metrics_port = -1;  // a second port, without TLS; the gate sees its requests as `metrics`; 0: any; -1: none
  std::string tls_cert, tls_key;       // PEM files; "": plain HTTP
  size_t max_header_bytes = 32 << 10;  // also the limit of a chunk's extension and of a trailer
  size_t max_header_lines = 128;
  // limit of chunk sizes, extensions and trailer, in addition to eight bytes per byte of the body
  size_t max_framing_bytes = 64 << 10;
  size_t max_body_total = 256 << 20;  // of all bodies; each counts until its reply has been taken
  size_t max_connections = 1024;
  size_t num_reserved = 16;  // connections beyond max_connections; the gate sees their requests as `reserved`
  std::chrono::milliseconds header_timeout{30000};  // from a request's first byte to the end of its header
  std::chrono::milliseconds body_timeout{30000};    // the window in which a body must keep up min_rate
  std::chrono::milliseconds write_timeout{60000};   // the window in which the reader of a waiting reply must keep it up
  std::chrono::milliseconds reserved_timeout{5000};  // the time that a reserved connection has for its request
  size_t min_rate = 4 << 10;                         // bytes per second; 0: any progress is enough
  std::chrono::milliseconds keep_alive{75000};       // silence between requests
  size_t pressure_bytes = 256 << 10;                 // unsent bytes at which OnPressure(true) is called
  // A stream with more unsent bytes than this is closed if its client takes none of them for unsent_timeout.
  size_t max_unsent_bytes = 8 << 20;
  std::chrono::milliseconds unsent_timeout{10000};
  // Limit of the unsent bytes of all replies, without the first pressure_bytes of each. One reply may be larger if no
  // other holds any.
  size_t max_unsent_total = 256 << 20;
  // Headers for each reply, also for a request that cannot be parsed. `origin`: of the request, "" if it has none.
  std::function<HeaderList(std::string_view origin)> added_headers = nullptr;
};

struct HttpRequest {
  std::string method;
  std::string path;    // without the query
  std::string query;   // without the question mark
  HeaderList headers;  // names in lower case
  std::string body;
  std::string id;                               // the client's X-Request-ID if it is usable, otherwise a new one
  std::string peer;                             // address of the client
  bool reserved = false;                        // it came on a connection beyond max_connections
  bool metrics = false;                         // it came through metrics_port
  std::shared_ptr<RequestNote> note = nullptr;  // made by the gate, for the handler and for DoneFn

  // Returns "" if the header is missing, and the first value if there are several.
  std::string_view Header(std::string_view lower_case_name) const;
};

struct HttpReply {
  int status = 200;
  std::string type;
  std::string body;
  HeaderList headers = {};
};

// The gate's decision on a request's header.
struct HttpVerdict {
  std::optional<HttpReply> refusal;  // the reply; the body is not read then
  size_t max_body_bytes = 0;         // a larger body gets a 413
  std::shared_ptr<RequestNote> note = nullptr;
  std::string path = {};  // replaces the request's path; "": the path stays
};

// One request and its reply. Any thread may call any method. Calls on one Exchange are carried out in order.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;

  // Frees the memory of the body. Call it when the body has been read, even while the reply is being made.
  virtual void DropBody() = 0;

  // Reports that there is no memory for a reply. The client gets a 503 that needs no memory, or the end of its stream.
  // That may happen only when the exchange is dropped.
  virtual void OutOfMemory() noexcept = 0;

  virtual void Respond(int status, std::string_view content_type, std::string body, HeaderList headers = {}) = 0;

  virtual void StartStream(int status, std::string_view content_type, HeaderList headers = {}) = 0;
  virtual void Write(std::string bytes) = 0;
  virtual void FinishStream() = 0;

  // Writes `bytes` whenever the stream has been silent for `silence`. Empty: never.
  virtual void SetPing(std::string bytes, std::chrono::seconds silence) = 0;

  // Calls `call` on the I/O thread if the client leaves before the reply is complete; at once if it has already left.
  virtual void OnClose(std::function<void()> call) = 0;

  // Calls `call` on the I/O thread: with true when the client reads more slowly than Write writes, and with false when
  // it has caught up.
  virtual void OnPressure(std::function<void(bool)> call) = 0;
};
using ExchangePtr = std::shared_ptr<Exchange>;

// For the log and for metrics. Reported when the reply has been handed to the system or the client has left.
struct HttpDone {
  int status;     // 499: the client left before a status was sent
  bool complete;  // the whole reply was written
  size_t sent_bytes;
  double seconds;
  std::string_view incomplete = {};  // why it is not complete; a literal
};

class HttpServer {
 public:
  using Gate = std::function<HttpVerdict(const HttpRequest& head)>;         // on the I/O thread
  using Handler = std::function<void(ExchangePtr)>;                         // on the I/O thread
  using DoneFn = std::function<void(const HttpRequest&, const HttpDone&)>;  // on the I/O thread

  // Errors: kInvalidArgument (no such host, no such certificate), kResourceExhausted (the port is in use).
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options, Gate gate, Handler handler,
                                                    DoneFn done);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual int metrics_port() const = 0;  // -1: none
  virtual bool is_loopback() const = 0;  // only this machine can reach it
  virtual void Run() = 0;
  virtual void Stop() = 0;  // any thread

  // After Run: closes every connection and carries out the queued calls. Objects that handlers use must still exist.
  virtual void Close() = 0;

  // Runs `call` soon on the I/O thread. Any thread.
  virtual void Post(std::function<void()> call) = 0;
  virtual void PostAfter(std::chrono::milliseconds delay, std::function<void()> call) = 0;

  // Calls `call` on the I/O thread for the first SIGTERM or SIGINT. The second one ends the process at once, whatever
  // runs. Call it once per process. Errors: kResourceExhausted (no file descriptors left).
  virtual Status OnSignal(std::function<void(int)> call) = 0;

  // Connections close when they are idle, or after their current reply. New connections are accepted, so that the gate
  // can say why it refuses requests. On the I/O thread.
  virtual void Drain() = 0;

  // On the I/O thread.
  virtual size_t num_connections() const = 0;
  virtual size_t body_bytes() const = 0;  // held for request bodies
  virtual size_t num_busy() const = 0;    // with a request whose reply is not completely written
};

}  // namespace dsv4::server
