// Who may ask, decided on a request's header alone: which host it names, which page it comes from, which key it brings.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/json.h"
#include "server/http/http.h"

namespace dsv4::server {

struct AccessOptions {
  std::vector<std::string> api_keys;       // empty: none is asked for
  std::string cors_origin;                 // whose pages may ask, besides the server's own; "*": all
  bool check_host = false;                 // the names of this machine and `allowed_hosts` only
  std::vector<std::string> allowed_hosts;  // without a port
  double key_guesses = 5;                  // wrong keys a second from one address; 0: any
};

// On one thread.
class Access {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Access(AccessOptions options) : options_(std::move(options)) {}

  // Why the request is refused, or nothing.
  std::optional<ApiError> Check(const HttpRequest& head, Clock::time_point now);

 private:
  // Guesses that an address may still make; they come back with time.
  struct Guesses {
    double left;
    Clock::time_point at;
  };

  bool HostMayBeNamed(std::string_view host) const;
  bool OriginMayAsk(const HttpRequest& head) const;
  std::optional<ApiError> CheckKey(const HttpRequest& head, Clock::time_point now);
  Guesses& GuessesOf(const std::string& peer, Clock::time_point now);

  const AccessOptions options_;
  std::map<std::string, Guesses> guesses_;
};

// "name", "127.0.0.1" and "::1" of "name:80", "127.0.0.1" and "[::1]:8000"; what has another form stays as it is.
std::string_view WithoutPort(std::string_view host);
// Only this machine answers to it: localhost, 127.0.0.0/8, ::1.
bool IsLoopbackName(std::string_view host);

}  // namespace dsv4::server
