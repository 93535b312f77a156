// Memory that was freed and still belongs to the process: after much work of many threads that is most of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace dsv4::server {

class FreeMemory {
 public:
  // Gives it back to the system where much has come together since the last time; whether it did. Takes some
  // milliseconds for each 100 MB, and as long where pages that are partly in use keep it: they are not counted again.
  bool GiveBack();

 private:
  std::atomic<int64_t> left_ = std::numeric_limits<int64_t>::min() / 2;  // bytes that the last time could not give back
};

}  // namespace dsv4::server
