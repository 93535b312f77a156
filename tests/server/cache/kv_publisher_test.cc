// The socket of KV events: readers that read, that do not, and too many of them.
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/cache/kv_events.h"

namespace dsv4::server {
namespace {

using namespace std::string_literals;

const std::string kHello = "\xFF"s + std::string(8, '\0') + "\x7F\x03\x00NULL"s + std::string(48, '\0') +
                           "\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03SUB"s;
const std::string kSubscribeAll = "\0\x01\x01"s, kPing = "\x04\x07\x04PING\0\x01"s, kPong = "\x04\x05\x04PONG"s;

class RawSubscriber {
 public:
  explicit RawSubscriber(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    int buffer = 4096;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
    timeval patience{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawSubscriber() { ::close(fd_); }
  RawSubscriber(const RawSubscriber&) = delete;

  // Subscribes to everything; returns when the server has read that.
  void Subscribe() {
    Send(kHello + kSubscribeAll + kPing);
    std::string text;
    while (!text.ends_with(kPong)) {
      const std::string more = Read(1);
      ASSERT_FALSE(more.empty());
      text += more;
    }
  }
  void Send(const std::string& bytes) {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // Returns exactly `size` bytes, fewer only at the end of the connection.
  std::string Read(size_t size) {
    std::string text(size, '\0');
    const ssize_t n = ::recv(fd_, text.data(), size, MSG_WAITALL);
    text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return text;
  }
  // Returns the number of the next message.
  uint64_t ReadMessage() {
    uint64_t number = 0;
    for (int frame = 0; frame < 3; ++frame) {
      const std::string flags = Read(1);
      if (flags.empty()) return ~uint64_t{0};
      uint64_t size = 0;
      for (const char c : Read((flags[0] & 2) != 0 ? 8 : 1)) size = size << 8 | static_cast<unsigned char>(c);
      const std::string body = Read(size);
      EXPECT_EQ((flags[0] & 1) != 0, frame < 2);
      if (frame != 1) continue;
      for (const char c : body) number = number << 8 | static_cast<unsigned char>(c);
    }
    return number;
  }

 private:
  const int fd_;
};

std::unique_ptr<KvPublisher> Publisher() { return std::move(KvPublisher::Bind("127.0.0.1", 0)).value(); }

size_t AllocatedBytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(KvPublisher, AReaderGetsAllMessagesFromItsSubscriptionOn) {
  const auto publisher = Publisher();
  publisher->Send("t", Json::array({"before"}));
  RawSubscriber reader(publisher->port());
  reader.Subscribe();
  for (int i = 0; i < 1000; ++i) publisher->Send("t", Json::array({std::string(static_cast<size_t>(i), 'x')}));
  for (uint64_t i = 1; i <= 1000; ++i) ASSERT_EQ(reader.ReadMessage(), i);
}

// Messages wait in one queue of a bounded size. A reader that continues misses the oldest, and the numbers show it.
TEST(KvPublisher, ReadersThatDoNotReadHoldABoundedNumberOfMessages) {
  const auto publisher = Publisher();
  std::vector<std::unique_ptr<RawSubscriber>> readers;
  for (int i = 0; i < 8; ++i) {
    readers.push_back(std::make_unique<RawSubscriber>(publisher->port()));
    readers.back()->Subscribe();
  }
  const size_t before = AllocatedBytes();
  const Json events = Json::array({std::string(25000, 'x')});
  constexpr uint64_t kMessages = 12000;  // 300 MB
  for (uint64_t i = 0; i < kMessages; ++i) publisher->Send("t", events);
  if (before > 0) {  // 0: the allocator of a sanitizer
    EXPECT_LT(AllocatedBytes(), before + (size_t{80} << 20));
  }
  for (auto& reader : readers) {
    uint64_t number = reader->ReadMessage(), missed = number;
    while (number != kMessages - 1) {
      const uint64_t next = reader->ReadMessage();
      ASSERT_GT(next, number);
      ASSERT_LT(next, kMessages);
      missed += next - number - 1;
      number = next;
    }
    EXPECT_GT(missed, kMessages / 2);
  }
}

TEST(KvPublisher, PlacesAreLimitedAndComeBack) {
  const auto publisher = Publisher();
  std::vector<std::unique_ptr<RawSubscriber>> readers;
  for (int i = 0; i < 64; ++i) {
    readers.push_back(std::make_unique<RawSubscriber>(publisher->port()));
    readers.back()->Subscribe();
  }
  RawSubscriber refused(publisher->port());
  EXPECT_EQ(refused.Read(1), "");
  readers.resize(10);
  for (int i = 0; i < 100; ++i) {
    RawSubscriber next(publisher->port());
    if (next.Read(1) == "\xFF") return;
  }
  FAIL() << "no place came back";
}

TEST(KvPublisher, APortThatIsTakenOrMissingIsAnError) {
  const auto publisher = Publisher();
  for (const auto& [host, port] :
       {std::pair("127.0.0.1", publisher->port()), std::pair("192.0.2.1", 0), std::pair("no such host", 0)}) {
    const auto second = KvPublisher::Bind(host, port);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(second.status().message().find(host), std::string::npos);
    EXPECT_NE(second.status().message().find("--kv-events"), std::string::npos);
  }
}

}  // namespace
}  // namespace dsv4::server
