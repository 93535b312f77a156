// Limits of the supported GPUs.
#pragma once

#include <cstddef>

namespace dsv4 {

// Shared memory of a block in bytes, static part included. Compute capabilities 9.0 and 10.x have it; 12.x has 99 KiB.
inline constexpr size_t kSharedMemoryOfABlock = 227 * 1024;

}  // namespace dsv4
