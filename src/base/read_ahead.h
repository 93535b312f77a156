// A hint to the kernel about memory that is mapped from files.
#pragma once

#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>

namespace dsv4 {

// Bytes [p, p + bytes) are about to be read, all of them: reading begins now, beside the caller. Nothing depends on its
// success; memory that is no file's stays as it is.
inline void ReadAhead(const uint8_t* p, int64_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(p);
  const uintptr_t first = begin / page * page;
  if (bytes <= 0) return;
  (void)::madvise(reinterpret_cast<void*>(first), begin - first + static_cast<uintptr_t>(bytes), MADV_WILLNEED);
}

}  // namespace dsv4
