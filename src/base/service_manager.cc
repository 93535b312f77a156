#include "dsv4/service_manager.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/env.h"

namespace dsv4 {

namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTellEvery{1000};

// A line feed would begin another field.
std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string Micros(microseconds time) { return std::to_string(time.count()); }

template <typename T>
bool Parse(const std::string& text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<ServiceManager> ServiceManager::At(const std::string& socket, microseconds watchdog) {
  constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (socket.size() < 2 || socket.size() > kLongest || (socket[0] != '/' && socket[0] != '@'))
    return InvalidArgument("NOTIFY_SOCKET is '" + socket + "'; accepted: an absolute path or @NAME, up to " +
                           std::to_string(kLongest) + " bytes");
  std::string address = socket;
  if (address[0] == '@') address[0] = '\0';
  return ServiceManager(std::move(address), watchdog);
}

Result<std::optional<ServiceManager>> ServiceManager::FromEnvironment() {
  const std::string socket = EnvNotifySocket(), usec = EnvWatchdogUsec(), pid = EnvWatchdogPid();
  if (socket.empty()) return std::optional<ServiceManager>();
  int64_t watchdog = 0, process = 0;
  if (!usec.empty() && (!Parse(usec, &watchdog) || watchdog < 0))
    return InvalidArgument("WATCHDOG_USEC is '" + usec + "'; accepted: a number of microseconds");
  // A watchdog for another process, such as a script that started this one.
  if (!pid.empty() && (!Parse(pid, &process) || process != ::getpid())) watchdog = 0;
  DSV4_ASSIGN_OR_RETURN(ServiceManager manager, At(socket, microseconds(watchdog)));
  return std::optional(std::move(manager));
}

void ServiceManager::Loading(int64_t bytes, int64_t total) {
  const auto now = steady_clock::now();
  if (told_ && now - *told_ < kTellEvery && bytes < total) return;
  told_ = now;
  char status[80];
  std::snprintf(status, sizeof(status), "loading: %.2f of %.2f GB", 1e-9 * static_cast<double>(bytes),
                1e-9 * static_cast<double>(total));
  Send("STATUS=" + std::string(status) + "\nEXTEND_TIMEOUT_USEC=" + Micros(kPatience) + "\n");
}

void ServiceManager::Ready(const std::string& status) const { Send("READY=1\nSTATUS=" + OneLine(status) + "\n"); }

void ServiceManager::Stopping(std::chrono::seconds longest, const std::string& status) const {
  Send("STOPPING=1\nSTATUS=" + OneLine(status) + "\nEXTEND_TIMEOUT_USEC=" + Micros(longest) + "\n");
}

void ServiceManager::Alive() const { Send("WATCHDOG=1\n"); }

void ServiceManager::Send(std::string_view message) const {
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const timeval wait{.tv_sec = kWait.count(), .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, address_.data(), address_.size());
  // A path ends with NUL; an abstract name is as long as the address says.
  const size_t length = offsetof(sockaddr_un, sun_path) + address_.size() + (address_[0] == '\0' ? 0 : 1);
  (void)::sendto(fd, message.data(), message.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to),
                 static_cast<socklen_t>(length));
  ::close(fd);
}

}  // namespace dsv4
