#include "server/cache/zmtp.h"

#include <array>
#include <random>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

using namespace std::string_literals;

// A greeting and READY as libzmq sends them for a SUB socket.
const std::string kGreeting = "\xFF"s + std::string(8, '\0') + "\x7F\x03\x01NULL"s + std::string(16 + 1 + 31, '\0');
const std::string kReady = "\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03SUB"s;

std::string Short(char flags, const std::string& body) {
  return std::string{flags, static_cast<char>(body.size())} + body;
}
std::string Subscribe(const std::string& topic) { return Short(0, "\x01" + topic); }

struct Peer {
  ZmtpPeer peer;
  std::string reply;
  bool Take(std::string_view bytes) { return peer.Take(bytes, &reply); }
};

TEST(Zmtp, ASubscriberIsGreetedAndFilters) {
  ASSERT_EQ(ZmtpGreeting().size(), 64u);
  EXPECT_EQ(ZmtpGreeting().substr(0, 16), "\xFF\0\0\0\0\0\0\0\0\x7F\x03\0NULL"s);
  const std::string all = kGreeting + kReady + Subscribe("kv@") + Subscribe("other") + Short(0, "\0other"s);
  for (const size_t piece : {size_t{1}, size_t{3}, all.size()}) {
    Peer p;
    for (size_t at = 0; at < all.size(); at += piece) {
      ASSERT_TRUE(p.Take(std::string_view(all).substr(at, piece))) << at;
      EXPECT_EQ(p.peer.ready(), at + piece >= kGreeting.size() + kReady.size());
    }
    EXPECT_EQ(p.reply, "\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03PUB"s);
    EXPECT_TRUE(p.peer.Wants("kv@host"));
    EXPECT_FALSE(p.peer.Wants("other"));
    EXPECT_FALSE(p.peer.Wants("kv"));
  }
}

TEST(Zmtp, CommandsOfLaterVersions) {
  Peer p;
  ASSERT_TRUE(p.Take(kGreeting + kReady));
  p.reply.clear();
  ASSERT_TRUE(p.Take(Short(4,
                           "\x09SUBSCRIBE"
                           "a"s) +
                     Short(4,
                           "\x04PING\0\x01"
                           "context"s) +
                     Short(4, "\x04NEWS")));
  EXPECT_EQ(p.reply, Short(4, "\x04PONGcontext"));
  EXPECT_TRUE(p.peer.Wants("abc"));
  ASSERT_TRUE(p.Take(Short(4,
                           "\x06"
                           "CANCELa"s)));
  EXPECT_FALSE(p.peer.Wants("abc"));
}

TEST(Zmtp, MessagesHaveFramesOfBothSizes) {
  const std::string large(300, 'x');
  const std::array<std::string_view, 3> frames = {"topic", "", large};
  EXPECT_EQ(ZmtpMessage(frames), "\x01\x05topic\x01\0\x02\0\0\0\0\0\0\x01\x2C"s + large);
}

TEST(Zmtp, OthersAreRefused) {
  const auto other = [](size_t at, char value) {
    std::string greeting = kGreeting;
    greeting[at] = value;
    return greeting;
  };
  std::string plain = kGreeting;
  plain.replace(12, 5, "PLAIN");
  for (const std::string& bytes :
       {"GET / HTTP/1.1\r\n"s, other(9, 0), other(10, 1), plain, kGreeting + Subscribe("a"),
        kGreeting + Short(4, "\x05READY"), kGreeting + Short(4, "\x05READY\x0BSocket-Type\0\0\0\x04PUSH"s),
        kGreeting + Short(4, "\x05READY\x0BSocket-Type\0\0\0\xFFSUB"s), kGreeting + Short(4, "\xFFREADY"),
        kGreeting + Short(4, ""), kGreeting + Short(4, "\x05HELLO"), kGreeting + Short(8, "x"),
        kGreeting + kReady + Short(0, "xyz"), kGreeting + kReady + Short(0, ""),
        kGreeting + kReady +
            Short(1,
                  "\x01"
                  "a")}) {
    Peer p;
    EXPECT_FALSE(p.Take(bytes)) << testing::PrintToString(bytes);
  }
}

// A peer that announces a large frame is refused before its bytes arrive. Topics have a number, too.
TEST(Zmtp, WhatAPeerSendsHasABound) {
  for (const std::string& size :
       {"\0\0\0\0\x40\0\0\0"s, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"s, "\0\0\0\0\0\0\x04\x01"s}) {
    Peer p;
    EXPECT_FALSE(p.Take(kGreeting + kReady + "\x02" + size));
    Peer early;
    EXPECT_FALSE(early.Take(kGreeting + "\x06" + size));
  }
  Peer p;
  ASSERT_TRUE(p.Take(kGreeting + kReady + "\x02\0\0\0\0\0\0\x04\0\x01"s + std::string(1023, 't')));
  EXPECT_TRUE(p.peer.Wants(std::string(1024, 't')));
  for (size_t i = 1; i < ZmtpPeer::kMaxSubscriptions; ++i) ASSERT_TRUE(p.Take(Subscribe("topic " + std::to_string(i))));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(p.Take(Short(0, "\0topic 1"s) + Subscribe("topic 1")));
  EXPECT_FALSE(p.Take(Subscribe("one more")));
}

TEST(Zmtp, RandomBytesChangeNothingElse) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    Peer p;
    std::string bytes = kGreeting + kReady + Subscribe("a") +
                        Short(4,
                              "\x04PING\0\x01"
                              "c"s);
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    bool open = true;
    for (size_t at = 0; at < bytes.size() && open; at += 7) open = p.Take(std::string_view(bytes).substr(at, 7));
    EXPECT_LE(p.reply.size(), 200u);
  }
}

}  // namespace
}  // namespace dsv4::server
