// ZMTP 3.0, the wire protocol of ZeroMQ (RFC 23), as far as a PUB socket without authentication speaks it. Anyone who
// reaches the port may send anything, so a peer's frames and subscriptions have limits. libzmq is not used: its sockets
// read the subscriptions of a peer into memory without a limit, in the thread that sends, and no option limits their
// number or the number of peers (ZMQ_MAXMSGSIZE and ZMQ_SNDHWM limit other things). Keys (PLAIN, CURVE) would keep
// strangers out, but routers read these events without a key.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::server {

// The first bytes that a PUB socket sends.
std::string ZmtpGreeting();

// Returns the bytes of a message with these frames.
std::string ZmtpMessage(std::span<const std::string_view> frames);

// The input of one peer: its greeting, its handshake, its subscriptions.
class ZmtpPeer {
 public:
  static constexpr size_t kMaxFrame = 1024, kMaxSubscriptions = 64;  // bytes; topics of one peer

  // Takes the next bytes of the peer and appends to `reply` what it must get for them. Returns false if the connection
  // must end: the peer is no subscriber, or it exceeds a limit.
  bool Take(std::string_view bytes, std::string* reply);

  bool ready() const { return ready_; }  // the handshake is complete
  bool Wants(std::string_view topic) const;

 private:
  bool TakeGreeting(std::string* reply);
  bool TakeFrame(unsigned flags, std::string_view body, std::string* reply);
  bool TakeCommand(std::string_view name, std::string_view data, std::string* reply);
  bool Subscribe(std::string_view topic);
  void Cancel(std::string_view topic);

  std::string in_;  // the beginning of a greeting or frame
  bool greeted_ = false, ready_ = false;
  std::vector<std::string> topics_;
};

}  // namespace dsv4::server
