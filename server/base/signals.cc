#include "server/base/signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

namespace dsv4::server {

namespace {

std::atomic<int> g_signals{0};  // atomic: a signal handler uses them
std::atomic<int> g_wake{-1};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" {
static void OnStopSignal(int number) {
  if (g_signals.fetch_add(1) > 0) ::_exit(0);
  const int code = errno;
  const char byte = static_cast<char>(number);
  [[maybe_unused]] const ssize_t ignored = ::write(g_wake, &byte, 1);
  errno = code;
}
}

}  // namespace

int CatchStopSignals() {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return -1;  // the signals keep their previous actions
  g_wake = ends[1];
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  return ends[0];
}

}  // namespace dsv4::server
