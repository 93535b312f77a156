// Limits for a request before anything is done with it: memory for bodies, from one budget for all connections, and
// bytes, lines and time while it arrives.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>

namespace dsv4::server::http_internal {

// A limit of bytes for many holders together. Any thread.
class ByteBudget {
 public:
  explicit ByteBudget(size_t limit) : limit_(limit) {}

  // Returns false if there is no room for `bytes` more.
  bool Take(size_t bytes);
  void GiveBack(size_t bytes) { held_ -= bytes; }
  size_t held() const { return held_; }

 private:
  const size_t limit_;
  std::atomic<size_t> held_{0};
};

// One holder's share of a budget. The destructor gives it back.
class HeldBytes {
 public:
  HeldBytes() = default;
  explicit HeldBytes(ByteBudget& budget) : budget_(&budget) {}
  HeldBytes(HeldBytes&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  HeldBytes& operator=(HeldBytes&& other) noexcept {
    Release();
    budget_ = std::exchange(other.budget_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~HeldBytes() { Release(); }

  // Makes the share at least `total` bytes. Returns false and changes nothing if the budget does not allow it.
  bool Extend(size_t total);

 private:
  void Release();

  ByteBudget* budget_ = nullptr;
  size_t bytes_ = 0;
};

// A body for Beast's parser. It grows as bytes arrive, whatever length was announced, and takes its memory from the
// budget before it grows. Errors: http::error::body_limit, http::error::buffer_overflow (the budget is used up).
struct IncomingBody {
  struct value_type {
    std::string text;
    HeldBytes held;
    size_t limit = 0;

    bool Grow(size_t needed, size_t most);
  };

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<std::uint64_t>& length, boost::system::error_code& error) {
      if (length) most_ = static_cast<size_t>(*length);
      error = {};
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      size_t taken = 0;
      for (const auto part : boost::beast::buffers_range_ref(buffers)) {
        Append({static_cast<const char*>(part.data()), part.size()}, error);
        if (error) return taken;
        taken += part.size();
      }
      return taken;
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    void Append(std::string_view bytes, boost::system::error_code& error);

    value_type& body_;
    size_t most_ = std::numeric_limits<size_t>::max();
  };
};

// The arrival of one request: when its parts began, how fast its body comes, and how many bytes its framing takes.
class Arrival {
 public:
  using Clock = std::chrono::steady_clock;

  struct Limits {
    std::chrono::milliseconds header_time, body_time;
    size_t min_rate;  // bytes of body a second, over body_time
  };

  // Called at the first byte.
  void Begin(Clock::time_point now) {
    if (!began_) begin_ = now;
    began_ = true;
  }
  bool began() const { return began_; }

  void HeaderIsDone(Clock::time_point now) {
    in_body_ = true;
    window_ = now;
  }
  // `consumed` bytes were read after the header, and `body` of them belong to the body.
  void Count(size_t consumed, size_t body) {
    window_bytes_ += body;
    body_ += body;
    framing_ += consumed - body;
  }
  // Returns true if chunk sizes, extensions and trailer are larger than a client needs.
  bool FramingIsTooLarge(size_t limit) const { return framing_ > limit + kFramingPerByte * body_; }

  // Returns true if the request arrives too slowly. Call it at intervals.
  bool IsLate(Clock::time_point now, const Limits& limits);

 private:
  static constexpr size_t kFramingPerByte = 8;  // one chunk per byte takes five or six

  bool began_ = false, in_body_ = false;
  Clock::time_point begin_, window_;
  size_t window_bytes_ = 0, body_ = 0, framing_ = 0;
};

}  // namespace dsv4::server::http_internal
