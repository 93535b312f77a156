// HTTP/1.1 over TCP: one I/O thread, any number of connections. Knows nothing of models.
//
//   auto http = HttpServer::Listen({.host = "127.0.0.1", .port = 8000}, [](ExchangePtr e) { e->Respond(200, ...); });
//   (*http)->Run();   // until Stop()
//
// Every Exchange must get a reply: Respond, or StartStream, Write ..., FinishStream. One that is dropped without is
// answered with 500. A client that leaves is noticed at once, also while nothing is being written; so is one that only
// half-closes its connection, which cannot be told apart.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/status.h"

namespace dsv4::server {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  size_t max_header_bytes = 32 << 10;
  size_t max_body_bytes = 32 << 20;
  size_t max_connections = 1024;
  std::chrono::seconds read_timeout{30};   // silence inside a request
  std::chrono::seconds keep_alive{75};     // silence between requests
  std::chrono::seconds write_timeout{60};  // a reader that takes nothing
  size_t pressure_bytes = 256 << 10;       // unsent bytes at which OnPressure(true) is called
  HeaderList headers = {};                 // of every reply
  size_t max_unsent_bytes = 8 << 20;       // unsent bytes of a stream at which the reader is dropped
};

struct HttpRequest {
  std::string method;
  std::string path;    // without the query
  std::string query;   // without the question mark
  HeaderList headers;  // names in lower case
  std::string body;
  std::string id;    // of the request: the client's X-Request-ID if it is usable, else a new one
  std::string peer;  // address of the client

  // "" where it is missing; of several the first.
  std::string_view Header(std::string_view lower_case_name) const;
};

// One request and its reply. Any thread may call any method; calls on one Exchange are carried out in order.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;

  virtual void Respond(int status, std::string_view content_type, std::string body,
                       HeaderList headers = {}) = 0;

  virtual void StartStream(int status, std::string_view content_type, HeaderList headers = {}) = 0;
  virtual void Write(std::string bytes) = 0;
  virtual void FinishStream() = 0;

  // `bytes` are written whenever the stream has been silent for so long. Empty: never.
  virtual void SetPing(std::string bytes, std::chrono::seconds silence) = 0;

  // Called on the I/O thread when the client leaves before the reply is complete; at once if it already has.
  virtual void OnClose(std::function<void()> call) = 0;

  // Called on the I/O thread with true when the client reads more slowly than Write writes, with false when it has
  // caught up.
  virtual void OnPressure(std::function<void(bool)> call) = 0;
};
using ExchangePtr = std::shared_ptr<Exchange>;

// For the log and for metrics, when a reply has been handed over or its client is gone.
struct HttpDone {
  int status;     // 499: the client left before a status was sent
  bool complete;  // the whole reply was written
  size_t sent_bytes;
  double seconds;
};

class HttpServer {
 public:
  using Handler = std::function<void(ExchangePtr)>;                         // on the I/O thread
  using DoneFn = std::function<void(const HttpRequest&, const HttpDone&)>;  // on the I/O thread

  // Errors: kInvalidArgument (no such host), kResourceExhausted (the port is taken).
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options, Handler handler, DoneFn done);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual void Run() = 0;
  virtual void Stop() = 0;  // any thread

  // After Run: closes every connection and carries out what is queued. What handlers refer to must still be there.
  virtual void Close() = 0;

  // Runs `call` on the I/O thread, soon. Any thread.
  virtual void Post(std::function<void()> call) = 0;
  virtual void PostAfter(std::chrono::milliseconds delay, std::function<void()> call) = 0;

  // Called on the I/O thread for each SIGTERM and SIGINT from now on.
  virtual void OnSignal(std::function<void(int)> call) = 0;

  // No new connections, and connections close after the reply they are busy with. On the I/O thread.
  virtual void Drain() = 0;

  // On the I/O thread.
  virtual size_t num_connections() const = 0;
  virtual size_t num_busy() const = 0;  // with a request whose reply is not written as a whole
};

}  // namespace dsv4::server
