// One connection of the HTTP server, and what connections share. With http.cc the only place that includes Boost.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "http.h"

namespace dsv4::server::http_internal {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Parser = http::request_parser<http::string_body>;

class Connection;

class IdSource {
 public:
  std::string Next();

 private:
  std::mt19937_64 random_{(static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}()};
};

// What the connections share. Used on the I/O thread only, but for the context.
struct Shared {
  HttpOptions options;
  HttpServer::Handler handler;
  HttpServer::DoneFn done;
  IdSource ids;
  std::unordered_set<Connection*> connections;
  bool draining = false;
  asio::io_context context{1};  // last: its end drops queued calls, and with them connections
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, tcp::socket socket, std::string peer);
  ~Connection() { shared_.connections.erase(this); }

  void Start() { Read(); }
  // A finished reply may still wait for the client to take it.
  bool busy() const { return !closed_ && (answering_ || unsent() > 0); }

  // Accepted beyond the limit: an answer, then away.
  void Refuse(int status, std::string_view message);

  // ---- Called by the exchange, on the I/O thread.

  void Respond(uint64_t serial, int status, const std::string& type, const std::string& body,
               const HeaderList& headers);
  void StartStream(uint64_t serial, int status, const std::string& type, const HeaderList& headers);
  void Write(uint64_t serial, const std::string& bytes);
  void FinishStream(uint64_t serial);
  void SetPing(uint64_t serial, std::string bytes, std::chrono::seconds silence);
  void OnClose(uint64_t serial, std::function<void()> call);
  void OnPressure(uint64_t serial, std::function<void(bool)> call);
  // The handler let go of the exchange.
  void Abandoned(uint64_t serial);

  // Once a second: time-outs and pings.
  void Sweep(Clock::time_point now);

  void Close();
  void CloseIfIdle();

 private:
  void NewParser();

  // One read is always outstanding: its end is how a client's leaving is noticed.
  void Read();
  void OnRead(error_code error, size_t n);
  void Parse();
  void RefuseFraming(error_code error);

  // False: the request has been refused.
  bool CheckHeader();
  void Dispatch();

  // A request that never reached a handler.
  void Fail(int status, std::string_view message);
  std::string Head(int status, const std::string& type, const HeaderList& headers) const;
  size_t unsent() const { return out_.size() + writing_.size() - written_; }

  void SendChunk(const std::string& bytes);
  void Send(const std::string& bytes);

  // Frames of one turn of the I/O loop leave together.
  void Flush();
  void WriteSome();
  void FinishReply();
  void AfterWriting();
  void Done(bool complete);

  Shared& shared_;
  tcp::socket socket_;
  std::string peer_;
  std::vector<char> buffer_;
  std::string in_;
  std::optional<Parser> parser_;
  bool continued_ = false;
  bool reading_ = false;

  // The request being answered.
  HttpRequest request_;
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

  std::string out_, writing_;
  size_t written_ = 0;
  bool flushing_ = false;
  bool close_after_write_ = false, lingering_ = false, closed_ = false;
  Clock::time_point last_activity_, last_progress_;
};

}  // namespace dsv4::server::http_internal
