// Tells a service manager, such as systemd, what a service does: sd_notify's protocol, without its library.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dsv4/export.h"
#include "dsv4/status.h"

namespace dsv4 {

// A message is one datagram to the manager's socket. A manager that does not read makes no call wait for more than
// kWait, and losing a message is no error. Any thread may call it, except Loading.
class DSV4_API ServiceManager {
 public:
  // The manager that started this process: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID of the environment. Not set
  // without NOTIFY_SOCKET. Errors: kInvalidArgument.
  static Result<std::optional<ServiceManager>> FromEnvironment();

  // `socket`: an absolute path, or @NAME for a name in the abstract namespace. `watchdog`: the longest time between two
  // calls of Alive() that the manager accepts; 0: any. Errors: kInvalidArgument.
  static Result<ServiceManager> At(const std::string& socket, std::chrono::microseconds watchdog);

  // Reports the progress of loading, about once per second. The manager waits kPatience longer each time.
  void Loading(int64_t bytes, int64_t total);
  // The service takes requests. `status`: one line.
  void Ready(const std::string& status) const;
  // The service finishes its work, for at most `longest`.
  void Stopping(std::chrono::seconds longest, const std::string& status) const;
  // The service works. If the manager has a watchdog, it restarts a service that does not call this in time.
  void Alive() const;

  // Interval for calls of Alive(): half of the watchdog's time, or 0 without a watchdog.
  std::chrono::milliseconds alive_interval() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(watchdog_ / 2);
  }

  static constexpr std::chrono::seconds kPatience{300};
  static constexpr std::chrono::seconds kWait{2};

 private:
  ServiceManager(std::string address, std::chrono::microseconds watchdog)
      : address_(std::move(address)), watchdog_(watchdog) {}
  void Send(std::string_view message) const;

  std::string address_;  // sun_path, which begins with NUL for an abstract name
  std::chrono::microseconds watchdog_;
  std::optional<std::chrono::steady_clock::time_point> told_;  // the last report of progress
};

}  // namespace dsv4
