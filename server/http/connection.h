// One connection of the HTTP server, and the state that connections share. Only this folder and observe/spans.cc
// include Boost.
#pragma once

#include <array>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http/parser.hpp>

#include "server/http/exchange.h"
#include "server/http/http.h"
#include "server/http/intake.h"
#include "server/http/tls.h"

namespace dsv4::server::http_internal {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Parser = http::request_parser<IncomingBody>;

class Connection;

// State that the connections share. Used on the I/O thread only, except the context, the byte budgets and the let-go
// list.
struct Shared {
  explicit Shared(const HttpOptions& its_options)
      : options(its_options), bodies(options.max_body_total), replies(options.max_unsent_total) {}

  const HttpOptions options;
  HttpServer::Gate gate;
  HttpServer::Handler handler;
  HttpServer::DoneFn done;
  ByteBudget bodies, replies;
  std::unordered_set<Connection*> connections;
  LetGoList let_go;                        // after `connections`: connections that it owns end before that set does
  std::array<char, 64 << 10> read_buffer;  // for all connections: an idle one holds no buffer
  bool draining = false;
  asio::io_context context{1};  // last: its destructor drops queued calls and, with them, connections
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `reserved`: the connection is beyond the limit; it has a short time to send a request that the gate accepts.
  // `tls`: null for a plain connection.
  Connection(Shared& shared, tcp::socket socket, std::string peer, std::unique_ptr<TlsStream> tls, bool metrics,
             bool reserved);
  ~Connection() { shared_.connections.erase(this); }

  void Start() { Read(); }
  // Also true while a finished reply waits for the client to take it.
  bool busy() const { return !closed_ && (answering_ || unsent() > 0); }
  bool reserved() const { return reserved_; }

  // ---- Called by the exchange, on the I/O thread.

  void Respond(uint64_t serial, int status, std::string_view type, const std::string& body, const HeaderList& headers);
  void StartStream(uint64_t serial, int status, const std::string& type, const HeaderList& headers);
  void Write(uint64_t serial, const std::string& bytes);
  void FinishStream(uint64_t serial);
  void SetPing(uint64_t serial, std::string bytes, std::chrono::seconds silence);
  void OnClose(uint64_t serial, std::function<void()> call);
  void OnPressure(uint64_t serial, std::function<void(bool)> call);
  // The handler dropped the exchange.
  void Abandoned(uint64_t serial, bool out_of_memory);
  void OutOfMemory(uint64_t serial) noexcept;

  // Runs `call`, which works on this connection. If memory runs out, only this connection ends.
  template <typename Call>
  void Guard(Call call) noexcept {
    try {
      call();
    } catch (const std::bad_alloc&) {
      OutOfMemory(serial_);
    }
  }

  // Handles timeouts and pings. Called once per second.
  void Sweep(Clock::time_point now);

  void Close(std::string_view why);
  void CloseIfIdle();

 private:
  void NextRequest();

  // Waits for data. A wait is always pending, except while much data waits for the current reply to end; the end of a
  // wait shows that the client left.
  void Read();
  // Returns true while arriving bytes must wait until the client has taken a reply.
  bool waits() const { return answering_ || (unsent() > 0 && !arrival_.began()); }
  // Returns true if the client has left or will send no more. For times when no read is pending.
  bool HasHungUp();
  void OnReadable();
  // Reads the available bytes without blocking. Returns 0 if there are none or on an error.
  size_t ReadSome(error_code& error);
  void TakeBytes(std::string_view bytes);
  void Parse();
  // Calls the parser once. Returns false if nothing more can be done now.
  bool ParseSome();
  bool HeaderHasTooManyLines();
  void RefuseFraming(error_code error);

  // The header is complete. Returns false if the request has been refused.
  bool CheckHeader();
  bool HasSoundHeader();
  std::string_view Origin() const;
  HttpRequest ReadHead() const;
  void Dispatch();

  // Answers a request that never reached a handler. Nothing more is read from the connection.
  void Fail(int status, std::string_view message);
  void Refuse(const HttpReply& reply, bool read_on);
  void BeginReply();

  std::string Head(int status, std::string_view type, const HeaderList& headers) const;
  size_t unsent() const { return out_.size() + writing_.size() - written_; }
  // Reserves memory for `more` bytes of a reply. Returns false if too many bytes of other replies wait.
  bool HoldReply(size_t more);
  void SendChunk(const std::string& bytes);
  void Send(std::string_view bytes);
  // Writes all frames of one turn of the I/O loop together.
  void Flush();
  void WriteSome();
  void WriteSomeTls();
  void OnWritten(size_t n);
  void FinishReply();
  void AfterWriting();
  void Done(std::string_view incomplete);
  void SweepArrival(Clock::time_point now);
  bool ReaderIsSlow(Clock::time_point now);

  Shared& shared_;
  tcp::socket socket_;
  const std::string peer_;
  const std::unique_ptr<TlsStream> tls_;
  const bool metrics_, reserved_;
  bool reading_ = false;

  // The request that is arriving.
  // Bytes that the parser has not taken. Limited by what the parser waits for; while the parser has to wait, limited by
  // Read.
  std::string in_;
  std::optional<Parser> parser_;
  Arrival arrival_;
  HttpRequest head_;
  HeaderList added_headers_;  // of HttpOptions, for its reply
  bool header_checked_ = false;
  size_t header_lines_ = 0;  // lines that the parser has taken

  // The request that is being answered.
  HttpRequest request_;
  HeldBytes held_;  // bytes of its body, until the client has taken the reply
  uint64_t serial_ = 0;
  int version_ = 11;
  bool keep_alive_ = true;
  bool answering_ = false, streaming_ = false, chunked_ = false;
  bool complete_ = false;  // of the latest reply
  int status_ = 0;
  size_t sent_bytes_ = 0;
  Clock::time_point start_;
  std::string ping_;
  std::chrono::seconds ping_after_{0};
  std::function<void()> on_close_;
  std::function<void(bool)> on_pressure_;
  bool pressed_ = false;

  HeldBytes held_reply_;  // unsent bytes of the reply beyond pressure_bytes
  std::string out_, writing_;
  size_t written_ = 0;
  bool flushing_ = false;
  // In this order: the last reply is being written and input is dropped; all is written, and the connection waits for
  // the client to close; closed.
  bool close_after_write_ = false, lingering_ = false, closed_ = false;
  Clock::time_point last_activity_, last_progress_, linger_end_;
  Clock::time_point write_window_;  // since then the client has taken `window_written_` bytes, and others waited
  size_t window_written_ = 0;
};

}  // namespace dsv4::server::http_internal
