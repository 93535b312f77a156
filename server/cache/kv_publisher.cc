// A PUB socket of ZeroMQ, on a thread of its own. Not libzmq's: its memory grows with what strangers send, because it
// accepts any number of connections and of subscriptions.
//
// All readers share one queue of messages. A slow reader misses the oldest messages.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/memory_reserve.h"
#include "server/cache/kv_events.h"
#include "server/cache/zmtp.h"

namespace dsv4::server {

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kMaxReaders = 64;
constexpr size_t kMaxMessages = 4096, kMaxMessageBytes = size_t{64} << 20;  // of the queue
constexpr size_t kMaxReplies = 16 << 10;                                    // bytes of PONGs that a peer does not take
constexpr int kReaderSendBuffer = 256 << 10;
constexpr std::chrono::seconds kHandshakeTime{10};
constexpr std::chrono::milliseconds kAcceptPause{200};  // after an accept failed, for example for lack of descriptors

class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

void SetOption(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof(value)); }

struct Message {
  std::string topic;
  std::string bytes;
};
using MessagePtr = std::shared_ptr<const Message>;

// The newest messages, by number.
class MessageQueue {
 public:
  void Add(MessagePtr message) {
    const std::lock_guard lock(mutex_);
    bytes_ += message->bytes.size();
    messages_.push_back(std::move(message));
    while (messages_.size() > kMaxMessages || bytes_ > kMaxMessageBytes) {
      bytes_ -= messages_.front()->bytes.size();
      messages_.pop_front();
      ++first_;
    }
  }
  uint64_t end() const {
    const std::lock_guard lock(mutex_);
    return first_ + messages_.size();
  }
  // Returns the message with number `*next` or, if it is gone, the oldest one, and sets `*next` to the number after it.
  // Null: there is none yet.
  MessagePtr Take(uint64_t* next) const {
    const std::lock_guard lock(mutex_);
    *next = std::max(*next, first_);
    if (*next >= first_ + messages_.size()) return nullptr;
    return messages_[static_cast<size_t>((*next)++ - first_)];
  }

 private:
  mutable std::mutex mutex_;
  std::deque<MessagePtr> messages_;
  uint64_t first_ = 0;
  size_t bytes_ = 0;
};

// One connection. Used on the publisher's thread.
class Reader {
 public:
  Reader(OwnedFd socket, uint64_t next)
      : socket_(std::move(socket)), replies_(ZmtpGreeting()), next_(next), begin_(SteadyClock::now()) {}

  int fd() const { return socket_.get(); }
  bool HasData() const { return !replies_.empty() || current_ != nullptr; }
  bool IsLate() const { return !peer_.ready() && SteadyClock::now() - begin_ > kHandshakeTime; }

  // Both return false if the connection must end.
  bool Receive() {
    std::array<char, 4096> buffer;
    const ssize_t n = ::recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0 || !peer_.Take({buffer.data(), static_cast<size_t>(n)}, &replies_)) return false;
    return replies_.size() <= kMaxReplies;
  }
  bool SendSome(const MessageQueue& queue) {
    while (true) {
      if (current_ == nullptr && replies_.empty() && !Next(queue)) return true;
      std::string_view bytes = current_ == nullptr ? replies_ : current_->bytes;
      const ssize_t n = ::send(fd(), bytes.data() + sent_, bytes.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      sent_ += static_cast<size_t>(n);
      if (sent_ < bytes.size()) continue;
      sent_ = 0;
      if (current_ == nullptr) replies_.clear();
      current_ = nullptr;
    }
  }

 private:
  bool Next(const MessageQueue& queue) {
    if (!peer_.ready()) return false;
    while ((current_ = queue.Take(&next_)) != nullptr && !peer_.Wants(current_->topic)) {
    }
    return current_ != nullptr;
  }

  const OwnedFd socket_;
  ZmtpPeer peer_;
  std::string replies_;  // sent between two messages
  MessagePtr current_;   // the message that is being sent
  size_t sent_ = 0;      // bytes of it or, if there is none, of the replies
  uint64_t next_;
  const SteadyClock::time_point begin_;
};

Result<OwnedFd> ListenOn(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  const std::string number = std::to_string(port);
  const auto refused = [&](const std::string& why) {
    return ResourceExhausted("cannot publish on tcp://" + (v6 ? "[" + host + "]" : host) + ":" + number + ": " + why +
                             "; choose another --kv-events (0: any free one)");
  };
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(host.c_str(), number.c_str(), &hints, &found); error != 0)
    return refused(::gai_strerror(error));
  OwnedFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  const bool listens = fd.get() >= 0 && ::bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                       ::listen(fd.get(), SOMAXCONN) == 0;
  const int error = errno;
  ::freeaddrinfo(found);
  if (!listens) return refused(std::strerror(error));
  return fd;
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  // The port has the same place in both forms.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

class SocketPublisher : public KvPublisher {
 public:
  SocketPublisher(OwnedFd listener, OwnedFd wake)
      : listener_(std::move(listener)), wake_(std::move(wake)), port_(PortOf(listener_.get())) {
    thread_ = std::thread([this] { Run(); });
  }
  ~SocketPublisher() override {
    stop_ = true;
    Wake();
    thread_.join();
  }

  int port() const override { return port_; }

  void Send(const std::string& topic, const Json& events) override {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const std::vector<uint8_t> payload = Json::to_msgpack(Json::array({now, events, 0}));
    std::array<char, 8> number;
    for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<char>(sent_ >> (8 * (number.size() - 1 - i)));
    ++sent_;
    const std::array<std::string_view, 3> frames = {
        topic,
        {number.data(), number.size()},
        {reinterpret_cast<const char*>(payload.data()), payload.size()},
    };
    queue_.Add(std::make_shared<const Message>(Message{.topic = topic, .bytes = ZmtpMessage(frames)}));
    Wake();
  }

 private:
  void Wake() const { (void)::eventfd_write(wake_.get(), 1); }

  void Run() {
    while (!stop_) {
      if (HasMemoryFor([this] { Turn(); })) continue;
      readers_.clear();  // they connect again
      std::this_thread::sleep_for(kAcceptPause);
    }
    for (Reader& reader : readers_) (void)HasMemoryFor([&] { (void)reader.SendSome(queue_); });
  }

  // Waits until something can be done, and does it.
  void Turn() {
    const bool accepts = SteadyClock::now() >= accept_from_;
    std::vector<pollfd> fds = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                               {.fd = accepts ? listener_.get() : -1, .events = POLLIN, .revents = 0}};
    for (const Reader& r : readers_) {
      fds.push_back({.fd = r.fd(), .events = static_cast<int16_t>(POLLIN | (r.HasData() ? POLLOUT : 0)), .revents = 0});
    }
    const int wait = !accepts ? static_cast<int>(kAcceptPause.count()) : readers_.empty() ? -1 : 1000;
    ::poll(fds.data(), fds.size(), wait);
    eventfd_t woken;
    if ((fds[0].revents & POLLIN) != 0) (void)::eventfd_read(wake_.get(), &woken);
    size_t i = 2;
    for (auto reader = readers_.begin(); reader != readers_.end(); ++i) {
      bool stays = !reader->IsLate();
      if (fds[i].revents != 0) stays = stays && reader->Receive();
      if (stays && reader->SendSome(queue_)) {
        ++reader;
      } else {
        reader = readers_.erase(reader);
      }
    }
    if ((fds[1].revents & POLLIN) != 0) Accept();
  }

  void Accept() {
    OwnedFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      accept_from_ = SteadyClock::now() + kAcceptPause;
    } else if (readers_.size() < kMaxReaders) {
      SetOption(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      SetOption(socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
      SetOption(socket.get(), SOL_SOCKET, SO_SNDBUF, kReaderSendBuffer);
      readers_.emplace_back(std::move(socket), queue_.end());
      (void)readers_.back().SendSome(queue_);
    }
  }

  const OwnedFd listener_, wake_;
  const int port_;
  uint64_t sent_ = 0;  // messages
  MessageQueue queue_;
  std::atomic<bool> stop_ = false;
  std::list<Reader> readers_;
  SteadyClock::time_point accept_from_{};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<KvPublisher>> KvPublisher::Bind(const std::string& host, int port) {
  DSV4_ASSIGN_OR_RETURN(OwnedFd listener, ListenOn(host, port));
  OwnedFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return ResourceExhausted("--kv-events: no event: " + std::string(std::strerror(errno)));
  return std::unique_ptr<KvPublisher>(std::make_unique<SocketPublisher>(std::move(listener), std::move(wake)));
}

}  // namespace dsv4::server
