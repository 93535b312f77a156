// HTTP/1.1 over TCP: one I/O thread, any number of connections. Knows nothing of models.
//
//   auto http = HttpServer::Listen({.host = "127.0.0.1", .port = 8000}, gate, [](ExchangePtr e) { e->Respond(200, ...);
//   }, done);
//   (*http)->Run();   // until Stop()
//
// The gate sees a request's header and decides before any of its body is read or asked for. A request holds no more
// than the limits of HttpOptions, the bodies of all requests together no more than max_body_total, and what waits of
// all replies no more than max_unsent_total; one request of a connection is served at a time, and the next when the
// reply has been taken: what a client sends meanwhile is not read.
//
// Every Exchange must get a reply: Respond, or StartStream, Write ..., FinishStream. One that is dropped without is
// answered with 500. A client that leaves is noticed at once, also while nothing is being written, or within a second
// where more requests wait behind one, or where those fill the sockets when its reply is written. So is one that only
// half-closes its connection, which cannot be told apart.
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

// A to Z as a to z: names of hosts and headers, in every locale.
std::string LowerAscii(std::string_view text);

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;        // 0: any free one
  int metrics_port = -1;  // a second one, without TLS, whose requests the gate sees as `metrics`; 0: any; -1: none
  std::string tls_cert, tls_key;       // PEM files; "": plain HTTP
  size_t max_header_bytes = 32 << 10;  // also of a chunk's extension and of a trailer
  size_t max_header_lines = 128;
  // sizes of chunks, extensions and trailer, beside eight bytes for each of the body
  size_t max_framing_bytes = 64 << 10;
  size_t max_body_total = 256 << 20;  // of all bodies, each until its reply has been taken
  size_t max_connections = 1024;
  size_t num_reserved = 16;  // connections beyond them, whose requests the gate sees as `reserved`
  std::chrono::milliseconds header_timeout{30000};   // from a request's first byte to the end of its header
  std::chrono::milliseconds body_timeout{30000};     // in which a body must keep up min_rate
  std::chrono::milliseconds write_timeout{60000};    // in which the reader of a reply that waits must keep it up
  std::chrono::milliseconds reserved_timeout{5000};  // for a reserved connection to ask
  size_t min_rate = 4 << 10;                         // bytes a second; 0: any progress will do
  std::chrono::milliseconds keep_alive{75000};       // silence between requests
  size_t pressure_bytes = 256 << 10;                 // unsent bytes at which OnPressure(true) is called
  HeaderList headers = {};                           // of every reply
  size_t max_unsent_bytes = 8 << 20;                 // unsent bytes of a stream at which the reader is dropped
  // of all replies what is unsent beyond pressure_bytes of each; one may be larger where no other holds any
  size_t max_unsent_total = 256 << 20;
};

struct HttpRequest {
  std::string method;
  std::string path;    // without the query
  std::string query;   // without the question mark
  HeaderList headers;  // names in lower case
  std::string body;
  std::string id;         // of the request: the client's X-Request-ID if it is usable, else a new one
  std::string peer;       // address of the client
  bool reserved = false;  // it came on a connection beyond max_connections
  bool metrics = false;   // it came by metrics_port
  std::shared_ptr<RequestNote> note = nullptr;  // of the gate, carried along to the handler and to DoneFn

  // "" where it is missing; of several the first.
  std::string_view Header(std::string_view lower_case_name) const;
};

struct HttpReply {
  int status = 200;
  std::string type;
  std::string body;
  HeaderList headers = {};
};

// What a request's header decides.
struct HttpVerdict {
  std::optional<HttpReply> refusal;  // the answer; a body is not read then
  size_t max_body_bytes = 0;         // a larger body is a 413
  std::shared_ptr<RequestNote> note = nullptr;
};

// One request and its reply. Any thread may call any method; calls on one Exchange are carried out in order.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;

  // The body has been read: its memory is free from now on, also while the reply is being made.
  virtual void DropBody() = 0;

  // There is no memory to answer with: the client gets a 503 that needs none, or the end of its stream. It may come
  // only when the exchange is let go.
  virtual void OutOfMemory() noexcept = 0;

  virtual void Respond(int status, std::string_view content_type, std::string body, HeaderList headers = {}) = 0;

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
  std::string_view cut = {};  // why it is not complete; a literal
};

class HttpServer {
 public:
  using Gate = std::function<HttpVerdict(const HttpRequest& head)>;         // on the I/O thread
  using Handler = std::function<void(ExchangePtr)>;                         // on the I/O thread
  using DoneFn = std::function<void(const HttpRequest&, const HttpDone&)>;  // on the I/O thread

  // Errors: kInvalidArgument (no such host, no such certificate), kResourceExhausted (the port is taken).
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options, Gate gate, Handler handler,
                                                    DoneFn done);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual int metrics_port() const = 0;  // -1: none
  virtual bool is_loopback() const = 0;  // only this machine reaches it
  virtual void Run() = 0;
  virtual void Stop() = 0;  // any thread

  // After Run: closes every connection and carries out what is queued. What handlers refer to must still be there.
  virtual void Close() = 0;

  // Runs `call` on the I/O thread, soon. Any thread.
  virtual void Post(std::function<void()> call) = 0;
  virtual void PostAfter(std::chrono::milliseconds delay, std::function<void()> call) = 0;

  // Called on the I/O thread for the first SIGTERM or SIGINT from now on; the second ends the process at once, whatever
  // runs. Once in a process.
  virtual void OnSignal(std::function<void(int)> call) = 0;

  // Connections close when they are idle and after the reply they are busy with. New ones are taken, so that the gate
  // can say why nothing else is. On the I/O thread.
  virtual void Drain() = 0;

  // On the I/O thread.
  virtual size_t num_connections() const = 0;
  virtual size_t body_bytes() const = 0;  // held for bodies
  virtual size_t num_busy() const = 0;    // with a request whose reply is not written as a whole
};

}  // namespace dsv4::server
