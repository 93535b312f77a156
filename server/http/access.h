// Decides from a request's header alone whether a client may use the server: by the host name, the origin and the key.
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
  std::vector<std::string> api_keys;       // empty: no key is needed
  std::vector<std::string> cors_origins;   // other origins whose pages may send requests; "*": all
  bool check_host = false;                 // accept only the names of this machine and `allowed_hosts`
  std::vector<std::string> allowed_hosts;  // without a port
  double key_guesses = 5;                  // wrong keys per second from one address; 0: no limit
};

// Used on one thread.
class Access {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Access(AccessOptions options) : options_(std::move(options)) {}

  // Returns why the request is refused, or nullopt.
  std::optional<ApiError> Check(const HttpRequest& head, Clock::time_point now);

  // Returns the headers that let a page of another origin read the reply. Empty: no other origin may.
  HeaderList CorsHeaders(std::string_view origin) const;

 private:
  // Wrong keys that an address may still send; they refill with time.
  struct Guesses {
    double left;
    Clock::time_point at;
  };

  bool HostMayBeNamed(std::string_view host) const;
  bool IsCorsOrigin(std::string_view origin) const;
  bool OriginMayAsk(const HttpRequest& head) const;
  std::optional<ApiError> CheckKey(const HttpRequest& head, Clock::time_point now);
  Guesses& GuessesOf(const std::string& peer, Clock::time_point now);

  const AccessOptions options_;
  std::map<std::string, Guesses> guesses_;
};

// Returns the host without its port: "name", "127.0.0.1" and "::1" for "name:80", "127.0.0.1" and "[::1]:8000". Returns
// text of another form as is.
std::string_view WithoutPort(std::string_view host);
// Returns true for names that only this machine answers to: localhost, 127.0.0.0/8, ::1.
bool IsLoopbackName(std::string_view host);

}  // namespace dsv4::server
