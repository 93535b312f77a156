// dsv4 health: asks a server on HTTP whether it takes requests, for probes of containers and scripts.
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "errors.h"
#include "flags.h"
#include "io.h"
#include "other_commands.h"
#include "terminal_text.h"

namespace dsv4::cli {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kMaxReply = 4096;  // the rest of a reply is not read

struct HealthOptions {
  std::string url = "http://127.0.0.1:8000";
  int64_t timeout_s = 5;
};

struct Address {
  std::string host, port = "8000", path = "/health/ready";
};

[[noreturn]] void ThrowAddress(const std::string& url) {
  if (url.starts_with("https://"))
    throw UsageError("health does not speak TLS: start the server with --metrics-port N and use http://127.0.0.1:N");
  throw UsageError("'" + url + "' is no address; accepted: http://HOST[:PORT][/PATH]");
}

// http://HOST[:PORT][/PATH]; an IPv6 address is in brackets.
Address ReadAddress(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) ThrowAddress(url);
  if (std::any_of(url.begin(), url.end(), [](char c) { return c <= ' ' || c >= 0x7f; })) ThrowAddress(url);
  Address address;
  std::string rest = url.substr(kScheme.size());
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    if (slash + 1 < rest.size()) address.path = rest.substr(slash);
    rest.resize(slash);
  }
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    address.port = rest.substr(colon + 1);
    rest.resize(colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  int port = 0;
  if (rest.empty() || !ParseWhole(address.port, &port) || port < 1 || port > 65535) ThrowAddress(url);
  address.host = rest;
  return address;
}

class Socket {
 public:
  Socket(int fd, steady_clock::time_point end) : fd_(fd), end_(end) {}
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Returns "" or why it failed.
  std::string Connect(const addrinfo& to) const {
    if (::connect(fd_, to.ai_addr, to.ai_addrlen) == 0) return "";
    if (errno != EINPROGRESS) return std::strerror(errno);
    if (!Wait(POLLOUT)) return "no answer in time";
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? "" : std::strerror(error);
  }

  bool Write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
      if (!bytes.empty() && !Wait(POLLOUT)) return false;
    }
    return true;
  }

  // Reads until the end, the time-out, or kMaxReply bytes.
  std::string Read() const {
    std::string text(kMaxReply, '\0');
    size_t size = 0;
    while (size < text.size() && Wait(POLLIN)) {
      const ssize_t n = ::recv(fd_, text.data() + size, text.size() - size, 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) break;
      if (n > 0) size += static_cast<size_t>(n);
    }
    text.resize(size);
    return text;
  }

 private:
  bool Wait(int16_t events) const {
    while (true) {
      StopIfInterrupted();
      const auto left = std::chrono::duration_cast<milliseconds>(end_ - steady_clock::now()).count();
      if (left <= 0) return false;
      pollfd at{.fd = fd_, .events = events, .revents = 0};
      const int found = ::poll(&at, 1, static_cast<int>(left));
      if (found > 0) return true;
      if (found < 0 && errno != EINTR) return false;
    }
  }

  int fd_;
  steady_clock::time_point end_;
};

// Returns the reply, or throws why there is none.
std::string Get(const Address& address, steady_clock::time_point end) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found); code != 0)
    throw RunError("cannot find the host '" + address.host + "': " + ::gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  const bool ipv6 = address.host.find(':') != std::string::npos;
  const std::string place = (ipv6 ? "[" + address.host + "]" : address.host) + ":" + address.port;
  std::string why;
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const int fd = ::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    const Socket socket(fd, end);
    why = socket.Connect(*to);
    if (!why.empty()) continue;
    if (!socket.Write("GET " + address.path + " HTTP/1.1\r\nHost: " + place + "\r\nConnection: close\r\n\r\n"))
      throw RunError(place + " does not read the request");
    return socket.Read();
  }
  throw RunError("cannot connect to " + place + ": " + why);
}

int RunHealth(const HealthOptions& options) {
  const Address address = ReadAddress(options.url);
  const auto end = steady_clock::now() + milliseconds(1000 * options.timeout_s);
  const std::string reply = Get(address, end);
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  int status = 0;
  if (reply.size() < kVersion.size() + 3 || !reply.starts_with("HTTP/1.") ||
      !ParseWhole(std::string_view(reply).substr(kVersion.size(), 3), &status))
    throw RunError(options.url + (reply.empty() ? " does not answer" : " is no HTTP server"));
  const size_t blank = reply.find("\r\n\r\n");
  const std::string body = blank == std::string::npos ? "" : reply.substr(blank + 4);
  if (status != 200)
    throw RunError(options.url + " is not ready: status " + std::to_string(status) + (body.empty() ? "" : ", ") +
                   ForTerminal(body.substr(0, 200)));
  Print(body + (body.ends_with('\n') ? "" : "\n"));
  return kExitDone;
}

}  // namespace

void AddHealth(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<HealthOptions>();
  CLI::App* c = AddCommand(app, "health", "Ask a running server whether it takes requests; exit status 0: yes, 1: no",
                           "dsv4 health http://127.0.0.1:8000");
  c->add_option("url", o->url, "http://HOST[:PORT][/PATH] (default http://127.0.0.1:8000/health/ready)");
  AddInteger(c, "--timeout", &o->timeout_s, 1, 3600, "seconds to wait for the answer (default 5)");
  c->final_callback([=] { *chosen = [o] { return RunHealth(*o); }; });
}

}  // namespace dsv4::cli
