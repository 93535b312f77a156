// Errors of commands. In cli/ an error is an exception. main() prints it as one line on stderr and sets the exit
// status. The library does not throw.
#pragma once

#include <stdexcept>
#include <utility>

#include "dsv4/status.h"

namespace dsv4::cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as a shell reports it
inline constexpr int kExitClosedPipe = 141;   // 128 + SIGPIPE

// The command line is wrong: exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The command failed: exit status 1.
struct RunError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Ends the process without a message: after Ctrl-C, or if the reader of stdout has closed the pipe.
struct QuietExit {
  int exit_status;
};

inline void Must(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kCancelled) throw QuietExit{kExitInterrupted};
  throw RunError(status.message());
}

template <typename T>
T Must(Result<T> result) {
  Must(result.status());
  return std::move(result).value();
}

// For the values of flags.
inline void MustBeUsable(const Status& status) {
  if (!status.ok()) throw UsageError(status.message());
}

}  // namespace dsv4::cli
