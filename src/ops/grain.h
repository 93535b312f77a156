// The smallest work that pays for a second thread.
#pragma once

#include <cstdint>

namespace dsv4 {

// The products that each thread should have at least: about 30 us of work. Handing work to a thread and waiting for it
// costs a few us on free cores. If other programs use the cores, it costs a time slice of the scheduler (ms). So small
// ops would lose more than they win, and a decode step of a small model has a hundred of them.
inline constexpr int64_t kMinPartProducts = 1 << 19;

// ParallelFor's grain for items of `products_per_item` each.
constexpr int64_t GrainFor(int64_t products_per_item) {
  const int64_t each = products_per_item > 0 ? products_per_item : 1;
  return each >= kMinPartProducts ? 1 : kMinPartProducts / each;
}

}  // namespace dsv4
