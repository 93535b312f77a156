#include "server/http/access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "server/http/keys.h"

namespace dsv4::server {

namespace {

constexpr double kBurstSeconds = 20;    // an address may send this many seconds' guesses at once
constexpr size_t kMaxAddresses = 4096;  // addresses with a count of their own

// Returns the /64 network of an IPv6 address, because a client usually has a whole network.
std::string Network(const std::string& peer) {
  in6_addr address;
  if (::inet_pton(AF_INET6, peer.c_str(), &address) != 1) return peer;
  std::fill(std::begin(address.s6_addr) + 8, std::end(address.s6_addr), 0);
  char text[INET6_ADDRSTRLEN];
  return ::inet_ntop(AF_INET6, &address, text, sizeof(text)) == nullptr ? peer : text;
}

}  // namespace

std::string_view WithoutPort(std::string_view host) {
  const bool bracketed = host.starts_with('[');
  const size_t end = bracketed ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == std::string_view::npos) return host;
  const std::string_view rest = host.substr(bracketed ? end + 1 : end);
  const bool sound = rest.empty() ||
                     (rest[0] == ':' && rest.find_first_not_of("0123456789", 1) == std::string_view::npos);
  return !sound ? host : bracketed ? host.substr(1, end - 1) : host.substr(0, end);
}

bool IsLoopbackName(std::string_view host) {
  in_addr address;
  if (::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  const std::string name = LowerAscii(host);
  return name == "localhost" || name == "localhost." || name == "::1";
}

std::optional<ApiError> Access::Check(const HttpRequest& head, Clock::time_point now) {
  if (!HostMayBeNamed(head.Header("host"))) {
    return ApiError(403, "the host name " + std::string(WithoutPort(head.Header("host"))) +
                             " is not allowed here; add it with --allowed-host");
  }
  if (!OriginMayAsk(head)) {
    return ApiError(403, "pages of " + std::string(head.Header("origin")) +
                             " may not use this server; allow them with --cors-origin");
  }
  return CheckKey(head, now);
}

// A page can make its own host name resolve to this machine (DNS rebinding). It then has the same origin as the server.
// A client that sends no Host is not a browser.
bool Access::HostMayBeNamed(std::string_view host) const {
  if (!options_.check_host || host.empty()) return true;
  const std::string name = LowerAscii(WithoutPort(host));
  const auto is_name = [&](const std::string& allowed) { return LowerAscii(WithoutPort(allowed)) == name; };
  return IsLoopbackName(name) || std::any_of(options_.allowed_hosts.begin(), options_.allowed_hosts.end(), is_name);
}

bool Access::IsCorsOrigin(std::string_view origin) const {
  const auto& origins = options_.cors_origins;
  return std::any_of(origins.begin(), origins.end(),
                     [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

// A reply names at most one origin. If there are several, it is the one that asked, and caches must keep one reply per
// origin.
HeaderList Access::CorsHeaders(std::string_view given) const {
  const auto& origins = options_.cors_origins;
  if (origins.empty()) return {};
  HeaderList headers = {{"Access-Control-Allow-Headers", "*, Authorization"},
                        {"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                        {"Access-Control-Expose-Headers", "x-request-id, request-id, Retry-After, x-should-retry"}};
  const bool any = std::find(origins.begin(), origins.end(), "*") != origins.end();
  const bool one = any || origins.size() == 1;
  const std::string origin = any ? "*" : one ? origins.front() : std::string(given);
  if (!one) headers.emplace_back("Vary", "Origin");
  if (one || IsCorsOrigin(origin)) headers.emplace_back("Access-Control-Allow-Origin", origin);
  return headers;
}

// A browser sends the origin of the page. It sends some kinds of requests without asking the server first, so pages of
// other origins could make this server work.
bool Access::OriginMayAsk(const HttpRequest& head) const {
  const std::string_view origin = head.Header("origin");
  if (origin.empty() || IsCorsOrigin(origin)) return true;
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && origin.substr(scheme + 3) == head.Header("host");
}

std::optional<ApiError> Access::CheckKey(const HttpRequest& head, Clock::time_point now) {
  if (options_.api_keys.empty()) return std::nullopt;
  ApiError wrong(401, "no valid API key: send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'", "",
                 "invalid_api_key");
  if (GivenKey(head).empty()) return wrong;
  Guesses* guesses = options_.key_guesses > 0 ? &GuessesOf(head.peer, now) : nullptr;
  if (guesses != nullptr && guesses->left < 1) {
    ApiError error(429, "too many wrong API keys came from " + head.peer + "; try again in a second");
    error.retry_after_s = 1;
    return error;
  }
  if (FindKey(options_.api_keys, head)) return std::nullopt;
  if (guesses != nullptr) guesses->left -= 1;
  return wrong;
}

// Forgets addresses that have all their guesses first. Beyond kMaxAddresses, all other addresses share one count.
Access::Guesses& Access::GuessesOf(const std::string& peer, Clock::time_point now) {
  const double most = options_.key_guesses * kBurstSeconds;
  const auto left = [&](const Guesses& g) {
    return std::min(most, g.left + options_.key_guesses * std::chrono::duration<double>(now - g.at).count());
  };
  std::string name = Network(peer);
  if (guesses_.size() >= kMaxAddresses && !guesses_.contains(name)) {
    std::erase_if(guesses_, [&](const auto& entry) { return left(entry.second) >= most; });
    if (guesses_.size() >= kMaxAddresses) name = "others";
  }
  Guesses& guesses = guesses_.try_emplace(name, Guesses{.left = most, .at = now}).first->second;
  guesses = {.left = left(guesses), .at = now};
  return guesses;
}

}  // namespace dsv4::server
