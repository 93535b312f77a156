// Two routed experts of a layer that swap their memory.
#pragma once

#include <cstdint>

namespace dsv4 {

// Limit for the swaps that a model makes together.
inline constexpr int64_t kMostSwapsAtOnce = 4;

struct ExpertSwap {
  int64_t layer = 0;
  int64_t in = 0;   // from the host's memory to the device's
  int64_t out = 0;  // from the device's memory to the host's
};

}  // namespace dsv4
