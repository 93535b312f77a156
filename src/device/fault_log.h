// The first failure of one device. Each device has its own log, so that other GPUs of the process continue.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "base/str.h"
#include "dsv4/status.h"

namespace dsv4 {

class FaultLog {
 public:
  // `device`: its name in messages.
  explicit FaultLog(std::string_view device = "GPU") : device_(device) {}

  // Keeps the first failure: later ones follow from it.
  void Note(std::string_view what, std::string_view error) {
    const std::lock_guard lock(mutex_);
    if (first_.empty()) first_ = StrCat(what, ": ", error);
  }

  // Any thread may call it.
  Status status() const {
    const std::lock_guard lock(mutex_);
    if (first_.empty()) return {};
    return Internal(StrCat("the ", device_, " failed (", first_,
                           "), and its memory is lost; report this with the command if it "
                           "happens again"));
  }

 private:
  const std::string device_;
  mutable std::mutex mutex_;
  std::string first_;
};

}  // namespace dsv4
