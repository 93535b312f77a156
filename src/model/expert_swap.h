// Two routed experts of a layer that change places.
#pragma once

#include <cstdint>

namespace dsv4 {

// That a model makes together, at most.
inline constexpr int64_t kMostSwapsAtOnce = 4;

struct ExpertSwap {
  int64_t layer = 0;
  int64_t in = 0;   // from the host's memory to the device's
  int64_t out = 0;  // the other way
};

}  // namespace dsv4
