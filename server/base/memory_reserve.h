// Memory set aside for the way back from an allocation that failed: destructors may need some (those of JSON values
// do), and one that finds none ends the process.
#pragma once

#include <cstddef>
#include <new>

namespace dsv4::server {

// Sets memory aside, from now on and for the whole process: while an exception is in flight, an allocation that fails
// gets it. All others throw std::bad_alloc as before. Where there is too little memory nothing is set aside.
void KeepMemoryReserve(size_t bytes);

// Sets it aside again where it was given out; by whoever caught a std::bad_alloc, when what failed has been freed.
void RefillMemoryReserve() noexcept;

// Calls it: what a thread that must go on does with each piece of its work. False: memory ran out, and what the call
// had made is gone.
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
