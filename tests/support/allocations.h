// The allocations of a test program with the operator new of count_allocations.h: counted, and failing on request.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace dsv4::test {

inline std::atomic<int64_t> num_allocations{0}, num_failed_allocations{0}, num_allocated_bytes{0};

struct AllocationLimit {
  int64_t left = -1;  // how many succeed before one fails; negative: all do
  bool once = false;  // later ones succeed; otherwise none does
};
// For threads that begin after this is set. The threads' limits start with it.
inline std::atomic<int64_t> new_threads_allocations{-1};
inline thread_local AllocationLimit allocation_limit{.left = new_threads_allocations};

// Counts one. False: it must fail.
inline bool MayAllocate(size_t bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  num_allocated_bytes.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  AllocationLimit& limit = allocation_limit;
  if (limit.left < 0) return true;
  if (limit.left > 0) {
    --limit.left;
    return true;
  }
  if (limit.once) limit.left = -1;
  num_failed_allocations.fetch_add(1, std::memory_order_relaxed);
  return false;
}

}  // namespace dsv4::test
