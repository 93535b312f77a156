// The first failure of one device: it has a log of its own, so that another GPU of the process goes on.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "base/str.h"
#include "dsv4/status.h"

namespace dsv4 {

class FaultLog {
 public:
  // `device` is its word in messages.
  explicit FaultLog(std::string_view device = "GPU") : device_(device) {}

  // Keeps the first: what fails behind it is a consequence.
  void Note(std::string_view what, std::string_view error) {
    const std::lock_guard lock(mutex_);
    if (first_.empty()) first_ = StrCat(what, ": ", error);
  }

  // Any thread.
  Status status() const {
    const std::lock_guard lock(mutex_);
    if (first_.empty()) return {};
    return Internal(StrCat("the ", device_, " failed (", first_,
                           "), and what was in its memory is lost; report this with the command if "
                           "it comes back"));
  }

 private:
  const std::string device_;
  mutable std::mutex mutex_;
  std::string first_;
};

}  // namespace dsv4
