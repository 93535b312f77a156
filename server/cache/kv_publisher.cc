// A PUB socket of libzmq. The library is loaded when a socket is made, so a server without KV events does not need it.
#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include "server/cache/kv_events.h"

namespace dsv4::server {

namespace {

constexpr const char* kZmqLibrary = "libzmq.so.5";  // Debian: libzmq5
// Constants of zmq.h; their values are part of its binary interface.
constexpr int kZmqPub = 1, kZmqLinger = 17, kZmqSendHwm = 23, kZmqLastEndpoint = 32, kZmqIpv6 = 42;
constexpr int kZmqDontWait = 1, kZmqSendMore = 2;
constexpr int kMostUnsent = 4096;  // messages per reader; readers share the bytes: about 80 MB

struct ZmqCalls {
  void* (*ctx_new)();
  int (*ctx_term)(void*);
  void* (*socket)(void*, int);
  int (*close)(void*);
  int (*setsockopt)(void*, int, const void*, size_t);
  int (*getsockopt)(void*, int, void*, size_t*);
  int (*bind)(void*, const char*);
  int (*send)(void*, const void*, size_t, int);
  int (*zmq_errno)();
  const char* (*strerror)(int);
};

template <typename Function>
bool FindSymbol(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

Result<ZmqCalls> LoadZmq() {
  void* library = ::dlopen(kZmqLibrary, RTLD_NOW | RTLD_LOCAL);
  ZmqCalls z{};
  const bool found = library != nullptr && FindSymbol(library, "zmq_ctx_new", &z.ctx_new) &&
                     FindSymbol(library, "zmq_ctx_term", &z.ctx_term) && FindSymbol(library, "zmq_socket", &z.socket) &&
                     FindSymbol(library, "zmq_close", &z.close) &&
                     FindSymbol(library, "zmq_setsockopt", &z.setsockopt) &&
                     FindSymbol(library, "zmq_getsockopt", &z.getsockopt) && FindSymbol(library, "zmq_bind", &z.bind) &&
                     FindSymbol(library, "zmq_send", &z.send) && FindSymbol(library, "zmq_errno", &z.zmq_errno) &&
                     FindSymbol(library, "zmq_strerror", &z.strerror);
  if (!found) return Unsupported("--kv-events needs libzmq, which is not installed on this machine: install libzmq5");
  return z;
}

class ZmqPublisher : public KvPublisher {
 public:
  explicit ZmqPublisher(const ZmqCalls& calls) : z_(calls), context_(z_.ctx_new()) {
    if (context_ != nullptr) socket_ = z_.socket(context_, kZmqPub);
  }
  ~ZmqPublisher() override {
    if (socket_ != nullptr) z_.close(socket_);
    if (context_ != nullptr) z_.ctx_term(context_);
  }

  Status Open(const std::string& host, int port) {
    if (socket_ == nullptr) return ResourceExhausted("--kv-events: " + std::string(z_.strerror(z_.zmq_errno())));
    const bool v6 = host.find(':') != std::string::npos;
    Set(kZmqLinger, 0);
    Set(kZmqSendHwm, kMostUnsent);
    Set(kZmqIpv6, v6 ? 1 : 0);
    const std::string number = port == 0 ? "*" : std::to_string(port);
    const std::string where = "tcp://" + (v6 ? "[" + host + "]" : host) + ":" + number;
    if (z_.bind(socket_, where.c_str()) != 0) {
      return ResourceExhausted("cannot publish on " + where + ": " + z_.strerror(z_.zmq_errno()) +
                               "; choose another --kv-events (0: any free one)");
    }
    std::array<char, 256> endpoint{};
    size_t size = endpoint.size();
    if (z_.getsockopt(socket_, kZmqLastEndpoint, endpoint.data(), &size) != 0) endpoint[0] = '\0';
    const std::string bound = endpoint.data();
    port_ = std::atoi(bound.substr(bound.rfind(':') + 1).c_str());
    return {};
  }

  int port() const override { return port_; }

  void Send(const std::string& topic, const Json& events) override {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const std::vector<uint8_t> payload = Json::to_msgpack(Json::array({now, events, 0}));
    std::array<char, 8> number;
    for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<char>(next_ >> (8 * (number.size() - 1 - i)));
    ++next_;
    if (z_.send(socket_, topic.data(), topic.size(), kZmqSendMore | kZmqDontWait) < 0) return;
    if (z_.send(socket_, number.data(), number.size(), kZmqSendMore | kZmqDontWait) < 0) return;
    z_.send(socket_, payload.data(), payload.size(), kZmqDontWait);
  }

 private:
  void Set(int option, int value) { z_.setsockopt(socket_, option, &value, sizeof(value)); }

  const ZmqCalls z_;
  void* const context_;
  void* socket_ = nullptr;
  int port_ = 0;
  uint64_t next_ = 0;
};

}  // namespace

Result<std::unique_ptr<KvPublisher>> KvPublisher::Bind(const std::string& host, int port) {
  DSV4_ASSIGN_OR_RETURN(const ZmqCalls calls, LoadZmq());
  auto publisher = std::make_unique<ZmqPublisher>(calls);
  DSV4_RETURN_IF_ERROR(publisher->Open(host, port));
  return std::unique_ptr<KvPublisher>(std::move(publisher));
}

}  // namespace dsv4::server
