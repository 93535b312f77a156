#include "server/cache/zmtp.h"

#include <algorithm>
#include <cstdint>

#include "server/http/http.h"

namespace dsv4::server {

namespace {

constexpr size_t kGreetingBytes = 64, kSignatureBytes = 10, kMechanismBytes = 20, kVersionAt = 10, kMechanismAt = 12;
constexpr unsigned kMore = 1, kLong = 2, kCommand = 4;
constexpr size_t kTimeToLive = 2;  // bytes before the context of a PING

std::string Mechanism() {
  std::string name = "NULL";
  name.resize(kMechanismBytes);
  return name;
}

std::string ZmtpFrame(unsigned flags, std::string_view body) {
  const bool is_long = body.size() > 255;
  std::string out(1, static_cast<char>(flags | (is_long ? kLong : 0)));
  for (int shift = is_long ? 56 : 0; shift >= 0; shift -= 8) out += static_cast<char>(uint64_t{body.size()} >> shift);
  return out.append(body);
}

std::string CommandFrame(std::string_view name, std::string_view data) {
  std::string body(1, static_cast<char>(name.size()));
  return ZmtpFrame(kCommand, body.append(name).append(data));
}

uint64_t BigEndian(std::string_view bytes) {
  uint64_t n = 0;
  for (const char c : bytes) n = n << 8 | static_cast<unsigned char>(c);
  return n;
}

// Takes a text whose length precedes it in `size_bytes` bytes. Returns false if the data ends before.
bool TakeText(std::string_view* data, size_t size_bytes, std::string_view* text) {
  if (data->size() < size_bytes) return false;
  const uint64_t size = BigEndian(data->substr(0, size_bytes));
  data->remove_prefix(size_bytes);
  if (size > data->size()) return false;
  *text = data->substr(0, size);
  data->remove_prefix(size);
  return true;
}

// Returns true if a READY names a socket that a PUB socket may serve.
bool IsSubscriber(std::string_view properties) {
  std::string_view name, value;
  while (TakeText(&properties, 1, &name) && TakeText(&properties, 4, &value)) {
    if (LowerAscii(name) == "socket-type") return value == "SUB" || value == "XSUB";
  }
  return false;
}

}  // namespace

std::string ZmtpGreeting() {
  std::string out(kGreetingBytes, '\0');
  out[0] = '\xFF';
  out[kSignatureBytes - 1] = '\x7F';
  out[kVersionAt] = 3;
  out.replace(kMechanismAt, kMechanismBytes, Mechanism());
  return out;
}

std::string ZmtpMessage(std::span<const std::string_view> frames) {
  std::string out;
  for (size_t i = 0; i < frames.size(); ++i) out += ZmtpFrame(i + 1 < frames.size() ? kMore : 0, frames[i]);
  return out;
}

bool ZmtpPeer::Take(std::string_view bytes, std::string* reply) {
  in_ += bytes;
  if (!greeted_ && !TakeGreeting(reply)) return false;
  size_t at = 0;
  while (greeted_ && at < in_.size()) {
    const std::string_view left = std::string_view(in_).substr(at);
    const unsigned flags = static_cast<unsigned char>(left[0]);
    if (flags > (kMore | kLong | kCommand)) return false;
    const size_t head = (flags & kLong) != 0 ? 9 : 2;
    if (left.size() < head) break;
    const uint64_t size = BigEndian(left.substr(1, head - 1));
    if (size > kMaxFrame) return false;
    if (left.size() - head < size) break;
    if (!TakeFrame(flags, left.substr(head, size), reply)) return false;
    at += head + size;
  }
  in_.erase(0, at);
  return true;
}

// An older version and another mechanism end the connection.
bool ZmtpPeer::TakeGreeting(std::string* reply) {
  if (!in_.empty() && in_[0] != '\xFF') return false;
  if (in_.size() > kSignatureBytes && in_[kVersionAt] < 3) return false;
  if (in_.size() < kGreetingBytes) return true;
  if (in_[kSignatureBytes - 1] != '\x7F' || in_.compare(kMechanismAt, kMechanismBytes, Mechanism()) != 0) return false;
  in_.erase(0, kGreetingBytes);
  greeted_ = true;
  const std::string_view type("\x0BSocket-Type\0\0\0\x03PUB", 19);
  *reply += CommandFrame("READY", type);
  return true;
}

bool ZmtpPeer::TakeFrame(unsigned flags, std::string_view body, std::string* reply) {
  if ((flags & kCommand) != 0) {
    std::string_view name;
    return TakeText(&body, 1, &name) && TakeCommand(name, body, reply);
  }
  // A subscriber's messages have one frame: 1 and a topic, or 0 and a topic.
  if (!ready_ || (flags & kMore) != 0 || body.empty() || static_cast<unsigned char>(body[0]) > 1) return false;
  if (body[0] == 1) return Subscribe(body.substr(1));
  Cancel(body.substr(1));
  return true;
}

bool ZmtpPeer::TakeCommand(std::string_view name, std::string_view data, std::string* reply) {
  if (!ready_) {
    ready_ = name == "READY" && IsSubscriber(data);
    return ready_;
  }
  if (name == "SUBSCRIBE") return Subscribe(data);  // of ZMTP 3.1
  if (name == "CANCEL") Cancel(data);
  if (name == "PING") *reply += CommandFrame("PONG", data.substr(std::min(kTimeToLive, data.size())));
  return true;
}

bool ZmtpPeer::Subscribe(std::string_view topic) {
  if (topics_.size() == kMaxSubscriptions) return false;
  topics_.emplace_back(topic);
  return true;
}

void ZmtpPeer::Cancel(std::string_view topic) {
  const auto at = std::find(topics_.begin(), topics_.end(), topic);
  if (at != topics_.end()) topics_.erase(at);
}

bool ZmtpPeer::Wants(std::string_view topic) const {
  return std::any_of(topics_.begin(), topics_.end(), [&](const std::string& t) { return topic.starts_with(t); });
}

}  // namespace dsv4::server
