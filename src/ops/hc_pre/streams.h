// The largest number of residual streams, for the fixed-size mixes on the stack. The released models have 4.
#pragma once

#include <cstdint>

namespace dsv4 {

inline constexpr int64_t kMaxStreams = 8;

}  // namespace dsv4
