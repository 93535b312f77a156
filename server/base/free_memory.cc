#include "server/base/free_memory.h"

#include <malloc.h>

#include <cstddef>

namespace dsv4::server {

namespace {

constexpr size_t kMuch = size_t{32} << 20;  // bytes

}  // namespace

void GiveBackFreeMemory() {
#ifdef __GLIBC__
  if (::mallinfo2().fordblks > kMuch) ::malloc_trim(0);
#endif
}

}  // namespace dsv4::server
