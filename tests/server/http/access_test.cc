#include "server/http/access.h"

#include <chrono>
#include <string>

#include "gtest/gtest.h"

namespace dsv4::server {

namespace {

using std::chrono::milliseconds;

HttpRequest From(const std::string& host, HeaderList more = {}, const std::string& peer = "10.0.0.1") {
  HttpRequest head;
  head.method = "POST";
  head.path = "/tokenize";
  if (!host.empty()) head.headers.emplace_back("host", host);
  head.headers.insert(head.headers.end(), more.begin(), more.end());
  head.peer = peer;
  return head;
}

int StatusOf(const std::optional<ApiError>& error) { return error ? error->status : 200; }

const Access::Clock::time_point kNow = Access::Clock::now();

TEST(Access, OnThisMachineOnlyItsOwnNamesHold) {
  Access access({.check_host = true, .allowed_hosts = {"models.example", "::7", "with.port:8000", "[::8]:8000"}});
  for (const char* host :
       {"localhost", "LOCALHOST:8000", "127.0.0.1:80", "127.1.2.3", "[::1]:8000", "[::1]", "models.example:443",
        "Models.Example", "[::7]:1", "with.port:8000", "with.port", "[::8]", "localhost.", ""}) {
    EXPECT_EQ(StatusOf(access.Check(From(host), kNow)), 200) << host;
  }
  for (const char* host :
       {"evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "128.0.0.1", "127.1", "0.0.0.0",
        "[::2]", "evil.example:80:80", "models.example.evil", "[::1].evil", "127.0.0.1:80@evil"}) {
    const auto error = access.Check(From(host, {{"origin", "http://" + std::string(host)}}), kNow);
    EXPECT_EQ(StatusOf(error), 403) << host;
  }
  EXPECT_NE(std::string(access.Check(From("evil.example"), kNow)->what()).find("--allowed-host"), std::string::npos);
  Access open({});
  EXPECT_EQ(StatusOf(open.Check(From("any.example"), kNow)), 200);
}

TEST(Access, PagesOfOtherOriginsMayNotAsk) {
  Access access({.cors_origins = {"http://page"}});
  EXPECT_EQ(StatusOf(access.Check(From("here", {{"origin", "http://page"}}), kNow)), 200);
  EXPECT_EQ(StatusOf(access.Check(From("here", {{"origin", "https://here"}}), kNow)), 200);
  EXPECT_EQ(StatusOf(access.Check(From("here", {{"origin", "http://elsewhere"}}), kNow)), 403);
  EXPECT_EQ(StatusOf(access.Check(From("here", {{"origin", "null"}}), kNow)), 403);
}

TEST(Access, EachNamedOriginMayAskAndReadsItsOwnNameInTheReply) {
  Access access({.cors_origins = {"http://a", "http://b"}});
  const auto allowed = [](const Access& of, std::string_view origin) {
    for (const auto& [name, value] : of.CorsHeaders(origin)) {
      if (name == "Access-Control-Allow-Origin") return value;
    }
    return std::string("none");
  };
  for (const std::string origin : {"http://a", "http://b"}) {
    EXPECT_EQ(StatusOf(access.Check(From("here", {{"origin", origin}}), kNow)), 200);
    EXPECT_EQ(allowed(access, origin), origin);
  }
  EXPECT_EQ(StatusOf(access.Check(From("here", {{"origin", "http://c"}}), kNow)), 403);
  EXPECT_EQ(allowed(access, "http://c"), "none");
  EXPECT_EQ(allowed(access, ""), "none");
  EXPECT_EQ(allowed(Access({.cors_origins = {"http://a", "*"}}), "http://c"), "*");
  EXPECT_EQ(allowed(Access({}), "http://c"), "none");
}

TEST(Access, WrongKeysAreSlowedDownAndTheRightOneIsNotCounted) {
  Access access({.api_keys = {"right"}, .key_guesses = 5});
  const auto with = [&](const std::string& key, const std::string& peer, Access::Clock::time_point now) {
    return StatusOf(access.Check(From("", {{"authorization", "Bearer " + key}}, peer), now));
  };
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(with("right", "10.0.0.1", kNow), 200);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(StatusOf(access.Check(From(""), kNow)), 401);  // no key is no guess
  for (int i = 0; i < 100; ++i) ASSERT_EQ(with("wrong" + std::to_string(i), "10.0.0.1", kNow), 401);
  EXPECT_EQ(with("wrong", "10.0.0.1", kNow), 429);
  EXPECT_EQ(with("right", "10.0.0.1", kNow), 429);  // else a guess would be told apart
  EXPECT_EQ(with("right", "10.0.0.2", kNow), 200);
  EXPECT_EQ(with("right", "10.0.0.1", kNow + milliseconds(300)), 200);
  EXPECT_EQ(with("wrong", "10.0.0.1", kNow + milliseconds(300)), 401);
  EXPECT_EQ(with("wrong", "10.0.0.1", kNow + milliseconds(300)), 429);
}

TEST(Access, AddressesAreCountedWithinABound) {
  Access access({.api_keys = {"right"}, .key_guesses = 1});
  const auto wrong = [&](const std::string& peer) {
    return StatusOf(access.Check(From("", {{"x-api-key", "wrong"}}, peer), kNow));
  };
  // One IPv6 network counts as one address.
  int refused = 0;
  for (int i = 0; i < 100; ++i) refused += wrong("2001:db8::" + std::to_string(i)) == 429 ? 1 : 0;
  EXPECT_EQ(refused, 80);
  // Beyond the addresses with their own count, all others share one.
  refused = 0;
  for (int i = 0; i < 10000; ++i)
    refused += wrong("10." + std::to_string(i / 256) + "." + std::to_string(i % 256) + ".1") == 429 ? 1 : 0;
  EXPECT_GT(refused, 5000);
}

}  // namespace

}  // namespace dsv4::server
