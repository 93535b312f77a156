#include "server/http/intake.h"

#include <algorithm>

namespace dsv4::server::http_internal {

bool ByteBudget::Take(size_t bytes) {
  size_t held = held_;
  do {
    if (bytes > limit_ || held > limit_ - bytes) return false;
  } while (!held_.compare_exchange_weak(held, held + bytes));
  return true;
}

bool HeldBytes::Extend(size_t total) {
  if (budget_ == nullptr || total <= bytes_) return budget_ != nullptr;
  if (!budget_->Take(total - bytes_)) return false;
  bytes_ = total;
  return true;
}

void HeldBytes::Release() {
  if (budget_ != nullptr) budget_->GiveBack(bytes_);
  bytes_ = 0;
}

// Copies into a new string, because reserve() of a string with content takes at least twice its size.
bool IncomingBody::value_type::Grow(size_t needed, size_t most) {
  if (needed <= text.capacity()) return true;
  const size_t room = std::max(needed, std::min(2 * text.capacity(), most));
  if (!held.Extend(room)) return false;
  std::string larger;
  larger.reserve(room);
  larger += text;
  text = std::move(larger);
  return true;
}

void IncomingBody::reader::Append(std::string_view bytes, boost::system::error_code& error) {
  const size_t size = body_.text.size();
  error = {};
  if (bytes.size() > body_.limit || size > body_.limit - bytes.size()) {
    error = boost::beast::http::error::body_limit;
  } else if (!body_.Grow(size + bytes.size(), std::min(most_, body_.limit))) {
    error = boost::beast::http::error::buffer_overflow;
  } else {
    body_.text += bytes;
  }
}

bool Arrival::IsLate(Clock::time_point now, const Limits& limits) {
  if (!in_body_) return now - begin_ > limits.header_time;
  if (now - window_ < limits.body_time) return false;
  const double seconds = std::chrono::duration<double>(now - window_).count();
  // Without a minimum rate there must still be some progress.
  if (static_cast<double>(window_bytes_) < std::max(1.0, seconds * static_cast<double>(limits.min_rate))) return true;
  window_ = now;
  window_bytes_ = 0;
  return false;
}

}  // namespace dsv4::server::http_internal
