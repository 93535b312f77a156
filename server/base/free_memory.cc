#include "server/base/free_memory.h"

#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#endif

namespace dsv4::server {

#ifdef __GLIBC__

namespace {

constexpr int64_t kMuch = int64_t{32} << 20;  // bytes

// Returns the bytes of the process's own memory that are not allocated. The free bytes of mallinfo2 alone are wrong:
// they include pages that were already returned to the system.
int64_t Unused(const struct mallinfo2& heap) {
  int64_t all = 0, resident = 0, shared = 0;  // pages
  std::ifstream("/proc/self/statm") >> all >> resident >> shared;
  return (resident - shared) * ::sysconf(_SC_PAGESIZE) - static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

}  // namespace

bool FreeMemory::GiveBack() {
  const struct mallinfo2 heap = ::mallinfo2();
  const int64_t unused = Unused(heap);
  const int64_t left = std::min<int64_t>(left_, unused);
  left_ = left;
  if (static_cast<int64_t>(heap.fordblks) <= kMuch || unused - left <= kMuch) return false;
  ::malloc_trim(0);
  left_ = Unused(::mallinfo2());
  return true;
}

#else

bool FreeMemory::GiveBack() { return false; }

#endif

}  // namespace dsv4::server
