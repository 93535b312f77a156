// A hint to the kernel about memory that is mapped from files.
#pragma once

#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>

namespace dsv4 {

// Starts reading bytes [p, p + bytes), all of which the caller is about to read; does not wait. It is only a hint.
// Memory that is not mapped from a file is not changed.
inline void ReadAhead(const uint8_t* p, int64_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(p);
  const uintptr_t first = begin / page * page;
  if (bytes <= 0) return;
  (void)::madvise(reinterpret_cast<void*>(first), begin - first + static_cast<uintptr_t>(bytes), MADV_WILLNEED);
}

}  // namespace dsv4
