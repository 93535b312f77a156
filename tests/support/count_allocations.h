// Counts the allocations of a whole test program. Include it in one file of the program: it replaces operator new.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace dsv4::test {

inline std::atomic<int64_t> num_allocations{0};

}  // namespace dsv4::test

// The sized and array forms call these. The nothrow forms are here, too: a sanitizer would pair its own with our
// delete. Not inlined: GCC warns where it sees one half of a pair inlined.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  dsv4::test::num_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size > 0 ? size : 1);
}
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t align) {
  dsv4::test::num_allocations.fetch_add(1, std::memory_order_relaxed);
  const auto unit = static_cast<size_t>(align);
  if (void* p = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
