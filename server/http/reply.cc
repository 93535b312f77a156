// How a connection writes: whole and chunked replies, pressure, pings, and the end.
#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <utility>

#include <boost/asio/post.hpp>

#include "server/http/connection.h"

namespace dsv4::server::http_internal {

namespace {

constexpr std::chrono::seconds kLinger{2};  // how long the rest of a refused request is read and discarded

// Sent as is if there is no memory to write a reply.
#define DSV4_OUT_OF_MEMORY_BODY \
  R"({"error":{"message":"the server has no memory left","type":"internal_error","param":null,"code":null}})"
constexpr std::string_view kOutOfMemory =
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    "Content-Length: 102\r\n\r\n" DSV4_OUT_OF_MEMORY_BODY;
static_assert(std::string_view(DSV4_OUT_OF_MEMORY_BODY).size() == 102);
#undef DSV4_OUT_OF_MEMORY_BODY

const std::string kTooManyWait =
    R"({"error":{"message":"replies that their clients do not take fill the server's memory; try again",)"
    R"("type":"server_error","param":null,"code":null}})";

std::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

// "Sun, 22 Nov 2026 17:32:19 GMT"
std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 40> text;
  return {text.data(), std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

}  // namespace

void Connection::Respond(uint64_t serial, int status, std::string_view type, const std::string& body,
                         const HeaderList& headers) {
  if (serial != serial_ || !answering_ || streaming_) return;
  if (!HoldReply(body.size())) return Respond(serial, 503, "application/json", kTooManyWait, {{"Retry-After", "5"}});
  status_ = status;
  std::string head = Head(status, type, headers);
  head += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  Send(std::move(head));
  if (request_.method != "HEAD") Send(body);
  FinishReply();
}

void Connection::StartStream(uint64_t serial, int status, const std::string& type, const HeaderList& headers) {
  if (serial != serial_ || !answering_ || streaming_) return;
  status_ = status;
  streaming_ = true;
  chunked_ = version_ >= 11;
  if (!chunked_) keep_alive_ = false;
  std::string head = Head(status, type, headers);
  if (chunked_) head += "Transfer-Encoding: chunked\r\n";
  Send(head + "\r\n");
}

void Connection::Write(uint64_t serial, const std::string& bytes) {
  if (serial != serial_ || !answering_ || !streaming_ || bytes.empty()) return;
  SendChunk(bytes);
}

void Connection::FinishStream(uint64_t serial) {
  if (serial != serial_ || !answering_ || !streaming_) return;
  if (chunked_) Send("0\r\n\r\n");
  if (answering_) FinishReply();  // false if the last bytes were too many for a slow reader
}

void Connection::SetPing(uint64_t serial, std::string bytes, std::chrono::seconds silence) {
  if (serial != serial_) return;
  ping_ = std::move(bytes);
  ping_after_ = silence;
}

void Connection::OnClose(uint64_t serial, std::function<void()> call) {
  if (serial == serial_ && answering_) {
    on_close_ = std::move(call);
  } else if (serial != serial_ || !complete_) {
    call();
  }
}

void Connection::OnPressure(uint64_t serial, std::function<void(bool)> call) {
  if (serial == serial_ && answering_) on_pressure_ = std::move(call);
}

void Connection::Abandoned(uint64_t serial, bool out_of_memory) {
  if (serial != serial_ || !answering_) return;
  if (out_of_memory) return OutOfMemory(serial);
  if (streaming_) return Close("the handler dropped it");
  Guard([&] {
    Respond(serial, 500, "application/json",
            R"({"error":{"message":"the request was dropped inside the server","type":"internal_error",)"
            R"("param":null,"code":null}})",
            {});
  });
}

// Allocates nothing before it has freed something.
void Connection::OutOfMemory(uint64_t serial) noexcept {
  if (serial != serial_ || closed_ || lingering_) return;
  in_ = std::string();
  if (parser_) parser_->get().body() = {};
  if (streaming_ || sent_bytes_ > 0 || unsent() > 0) return Close("out of memory");
  if (!answering_) start_ = Clock::now();
  error_code error;
  status_ = 503;
  if (tls_ != nullptr) {
    tls_->Write(kOutOfMemory.data(), kOutOfMemory.size(), &sent_bytes_);
  } else {
    sent_bytes_ = socket_.write_some(asio::buffer(kOutOfMemory.data(), kOutOfMemory.size()), error);
  }
  answering_ = true;
  Done("out of memory");
  if (error || sent_bytes_ < kOutOfMemory.size()) return Close("");
  close_after_write_ = true;
  try {
    AfterWriting();
  } catch (const std::bad_alloc&) {
    Close("");
  }
}

std::string Connection::Head(int status, std::string_view type, const HeaderList& headers) const {
  std::string head = "HTTP/1.1 " + std::to_string(status) + " " + std::string(Reason(status)) + "\r\n";
  head += "Date: " + HttpDate() + "\r\n";
  if (!type.empty()) head += "Content-Type: " + std::string(type) + "\r\n";
  head += "x-request-id: " + request_.id + "\r\n";
  for (const auto& [name, value] : added_headers_) head += name + ": " + value + "\r\n";
  for (const auto& [name, value] : headers) head += name + ": " + value + "\r\n";
  if (!keep_alive_ || shared_.draining) {
    head += "Connection: close\r\n";
  } else if (version_ < 11) {
    head += "Connection: keep-alive\r\n";
  }
  return head;
}

void Connection::SendChunk(const std::string& bytes) {
  if (!chunked_) return Send(bytes);
  std::array<char, 20> size;
  const auto end = std::to_chars(size.data(), size.data() + size.size(), bytes.size(), 16).ptr;
  Send(std::string(size.data(), end) + "\r\n" + bytes + "\r\n");
}

void Connection::Send(std::string_view bytes) {
  if (closed_) return;
  if (unsent() == 0) {
    last_progress_ = write_window_ = Clock::now();
    window_written_ = 0;
  }
  out_ += bytes;
  sent_bytes_ += bytes.size();
  if (streaming_ && !HoldReply(0)) return Close("slow reader");
  if (!pressed_ && on_pressure_ && unsent() > shared_.options.pressure_bytes) {
    pressed_ = true;
    on_pressure_(true);
  }
  Flush();
}

bool Connection::HoldReply(size_t more) {
  const HttpOptions& o = shared_.options;
  const size_t bytes = unsent() + more;
  return bytes <= o.pressure_bytes || held_reply_.Extend(std::min(bytes - o.pressure_bytes, o.max_unsent_total));
}

bool Connection::ReaderIsSlow(Clock::time_point now) {
  const HttpOptions& o = shared_.options;
  // A stream may write much at once, for example the fields of its request. Its client needs time to take that.
  const bool much = streaming_ && unsent() > o.max_unsent_bytes;
  if (now - last_progress_ > (much ? o.unsent_timeout : o.write_timeout)) return true;
  if (now - write_window_ < o.write_timeout) return false;
  const double seconds = std::chrono::duration<double>(now - write_window_).count();
  if (static_cast<double>(window_written_) < seconds * static_cast<double>(o.min_rate)) return true;
  write_window_ = now;
  window_written_ = 0;
  return false;
}

void Connection::Flush() {
  if (flushing_ || closed_) return;
  flushing_ = true;
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->Guard([&] { self->WriteSome(); }); });
}

void Connection::WriteSome() {
  if (closed_) return;
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
    std::swap(writing_, out_);
  }
  if (writing_.empty()) {
    flushing_ = false;
    return AfterWriting();
  }
  if (tls_ != nullptr) return WriteSomeTls();
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](error_code error, size_t n) {
                             if (self->closed_) return;
                             if (error) return self->Close("the client left");
                             self->Guard([&] { self->OnWritten(n); });
                           });
}

void Connection::WriteSomeTls() {
  size_t n = 0;
  const TlsStream::Io io = tls_->Write(writing_.data() + written_, writing_.size() - written_, &n);
  if (io == TlsStream::Io::kEnd) return Close("the client left");
  const auto go_on = [self = shared_from_this(), n](error_code error) {
    if (self->closed_) return;
    if (error) return self->Close("the client left");
    self->Guard([&] { self->OnWritten(n); });
  };
  if (io == TlsStream::Io::kDone) return asio::post(socket_.get_executor(), [go_on] { go_on({}); });
  socket_.async_wait(io == TlsStream::Io::kWantWrite ? tcp::socket::wait_write : tcp::socket::wait_read, go_on);
}

void Connection::OnWritten(size_t n) {
  written_ += n;
  window_written_ += n;
  if (n > 0) last_progress_ = Clock::now();
  if (unsent() < shared_.options.pressure_bytes / 4) held_reply_ = HeldBytes(shared_.replies);
  if (pressed_ && unsent() < shared_.options.pressure_bytes / 4) {
    pressed_ = false;
    if (on_pressure_) on_pressure_(false);
  }
  WriteSome();
}

void Connection::FinishReply() {
  Done("");
  if (closed_) return;
  last_activity_ = Clock::now();
  close_after_write_ = !keep_alive_ || shared_.draining;
  if (close_after_write_) {
    in_ = std::string();
  } else {
    NextRequest();  // its bytes are read after the client has taken this reply
  }
  Flush();  // the last bytes of a stream may already be written
}

void Connection::AfterWriting() {
  if (answering_ || lingering_) return;
  if (close_after_write_ || !arrival_.began()) {
    held_ = {};
    out_ = std::string();
    writing_ = std::string();
    written_ = 0;
  }
  if (!close_after_write_) {
    if (!in_.empty()) Parse();
    if (shared_.draining) CloseIfIdle();
    return Read();
  }
  // Bytes of the request may still arrive. Closing now would reset the connection and lose the reply.
  lingering_ = true;
  linger_end_ = Clock::now() + kLinger;
  error_code ignored;
  if (tls_ != nullptr) tls_->Shutdown();
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  Read();
}

void Connection::Done(std::string_view incomplete) {
  answering_ = false;
  streaming_ = false;
  complete_ = incomplete.empty();
  ping_.clear();
  const auto on_close = std::exchange(on_close_, nullptr);
  on_pressure_ = nullptr;
  pressed_ = false;
  const HttpDone done{.status = status_ == 0 ? 499 : status_,
                      .complete = complete_,
                      .sent_bytes = sent_bytes_,
                      .seconds = std::chrono::duration<double>(Clock::now() - start_).count(),
                      .incomplete = incomplete};
  try {
    if (shared_.done) shared_.done(request_, done);
    if (!complete_ && on_close) on_close();
  } catch (const std::bad_alloc&) {
    // The log misses a line; everything else continues.
  }
}

}  // namespace dsv4::server::http_internal
