// Counts the allocations of a whole test program and lets them fail on request (allocations.h). Include it in one file
// of the program: it replaces operator new.
#pragma once

#include <cstdlib>
#include <new>

#include "support/allocations.h"

// The sized and array forms call these. The nothrow forms are here, too: a sanitizer would pair its own with our
// delete. Not inlined: GCC warns where it sees one half of a pair inlined.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return dsv4::test::MayAllocate(size) ? std::malloc(size > 0 ? size : 1) : nullptr;
}
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t align) {
  const auto unit = static_cast<size_t>(align);
  if (!dsv4::test::MayAllocate(size)) throw std::bad_alloc();
  if (void* p = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
