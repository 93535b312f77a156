// One connection of the HTTP server, and what connections share. Boost is included in this folder and by spans alone.
#pragma once

#include <array>
#include <new>
#include <optional>
#include <random>
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

class IdSource {
 public:
  std::string Next();

 private:
  std::mt19937_64 random_{(static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}()};
};

// What the connections share. Used on the I/O thread only, but for the context, the budget and the list.
struct Shared {
  explicit Shared(const HttpOptions& its_options)
      : options(its_options), bodies(options.max_body_total), replies(options.max_unsent_total) {}

  const HttpOptions options;
  HttpServer::Gate gate;
  HttpServer::Handler handler;
  HttpServer::DoneFn done;
  IdSource ids;
  ByteBudget bodies, replies;
  std::unordered_set<Connection*> connections;
  LetGoList let_go;                        // behind the connections: those in it end before that list does
  std::array<char, 64 << 10> read_buffer;  // of whoever reads: an idle connection holds none
  bool draining = false;
  asio::io_context context{1};  // last: its end drops queued calls, and with them connections
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `reserved`: beyond the limit; it has a short time to ask for what the gate lets pass.
  // `tls`: null on a plain one.
  Connection(Shared& shared, tcp::socket socket, std::string peer, std::unique_ptr<TlsStream> tls, bool metrics,
             bool reserved);
  ~Connection() { shared_.connections.erase(this); }

  void Start() { Read(); }
  // A finished reply may still wait for the client to take it.
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
  // The handler let go of the exchange.
  void Abandoned(uint64_t serial, bool out_of_memory);
  void OutOfMemory(uint64_t serial) noexcept;

  // Runs `call`, which works on this connection; when memory is gone, that ends this connection only.
  template <typename Call>
  void Guard(Call call) noexcept {
    try {
      call();
    } catch (const std::bad_alloc&) {
      OutOfMemory(serial_);
    }
  }

  // Once a second: time-outs and pings.
  void Sweep(Clock::time_point now);

  void Close(std::string_view why);
  void CloseIfIdle();

 private:
  void NextRequest();

  // Waiting to read is outstanding but while much waits behind a request: its end is how a client's leaving is noticed.
  void Read();
  // What arrives is left alone until a reply has been taken.
  bool waits() const { return answering_ || (unsent() > 0 && !arrival_.began()); }
  // The client has left, or will send no more; asked where nothing is being read.
  bool HasHungUp();
  void OnReadable();
  // What is there, without waiting; 0 where nothing is, or with an error.
  size_t ReadSome(error_code& error);
  void TakeBytes(std::string_view bytes);
  void Parse();
  // One call of the parser. False: nothing more can be done now.
  bool ParseSome();
  bool HeaderHasTooManyLines();
  void RefuseFraming(error_code error);

  // The header is complete. False: the request has been refused.
  bool CheckHeader();
  bool HasSoundHeader();
  HttpRequest ReadHead() const;
  void Dispatch();

  // A request that never reached a handler. Nothing more is read from its connection.
  void Fail(int status, std::string_view message);
  void Refuse(const HttpReply& reply, bool read_on);
  void BeginReply();

  std::string Head(int status, std::string_view type, const HeaderList& headers) const;
  size_t unsent() const { return out_.size() + writing_.size() - written_; }
  // Room for so many more bytes of a reply. False: those of others wait, too many of them.
  bool HoldReply(size_t more);
  void SendChunk(const std::string& bytes);
  void Send(std::string_view bytes);
  // Frames of one turn of the I/O loop leave together.
  void Flush();
  void WriteSome();
  void WriteSomeTls();
  void OnWritten(size_t n);
  void FinishReply();
  void AfterWriting();
  void Done(std::string_view cut);
  void SweepArrival(Clock::time_point now);
  bool ReaderIsSlow(Clock::time_point now);

  Shared& shared_;
  tcp::socket socket_;
  const std::string peer_;
  const std::unique_ptr<TlsStream> tls_;
  const bool metrics_, reserved_;
  bool reading_ = false;

  // The request that is arriving.
  // bytes that the parser has not taken; bounded by what it waits for, and where it has to wait by Read
  std::string in_;
  std::optional<Parser> parser_;
  Arrival arrival_;
  HttpRequest head_;
  bool header_checked_ = false;
  size_t header_lines_ = 0;  // that the parser has taken

  // The request being answered.
  HttpRequest request_;
  HeldBytes held_;  // its body's, until the reply has been taken
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

  HeldBytes held_reply_;  // what waits of it beyond pressure_bytes
  std::string out_, writing_;
  size_t written_ = 0;
  bool flushing_ = false;
  // In this order: the last reply is being written and input is dropped; all is written and the client's end awaited;
  // over.
  bool close_after_write_ = false, lingering_ = false, closed_ = false;
  Clock::time_point last_activity_, last_progress_, linger_end_;
  Clock::time_point write_window_;  // since then `window_written_` bytes were taken, while others waited
  size_t window_written_ = 0;
};

}  // namespace dsv4::server::http_internal
