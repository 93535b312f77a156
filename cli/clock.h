// Elapsed time in seconds.
#pragma once

#include <chrono>

namespace dsv4::cli {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace dsv4::cli
