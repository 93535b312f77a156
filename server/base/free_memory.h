// Memory that was freed but still belongs to the process. After work of many threads it can be most of the process's
// memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace dsv4::server {

class FreeMemory {
 public:
  // Returns freed memory to the system if more than 32 MiB of it is new since the last call, and then returns true.
  // Takes a few milliseconds per 100 MB, also if pages that are partly in use keep the memory; later calls do not count
  // such memory.
  bool GiveBack();

 private:
  std::atomic<int64_t> left_ = std::numeric_limits<int64_t>::min() / 2;  // bytes that the last call could not return
};

}  // namespace dsv4::server
