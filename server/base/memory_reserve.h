// Memory set aside for error handling after a failed allocation. Destructors may need memory (JSON values do),
// and a destructor that gets none ends the process.
#pragma once

#include <cstddef>
#include <new>

namespace dsv4::server {

// Sets memory aside for the whole process. While an exception is in flight, an allocation that fails gets this memory.
// All other failed allocations throw std::bad_alloc as before. If memory is short, nothing is set aside.
void KeepMemoryReserve(size_t bytes);

// Sets the memory aside again if it was used. Call it after a std::bad_alloc was caught and the memory of the failed
// work has been freed.
void RefillMemoryReserve() noexcept;

// Runs `call` and returns true. If memory runs out, returns false, and everything that the call allocated has been
// freed. Threads that must continue run each piece of their work with it.
template <typename Call>
bool HasMemoryFor(Call&& call) {
  try {
    call();
    return true;
  } catch (const std::bad_alloc&) {
    RefillMemoryReserve();
    return false;
  }
}

}  // namespace dsv4::server
