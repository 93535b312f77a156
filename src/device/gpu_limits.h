// Limits of the GPUs that there are kernels for.
#pragma once

#include <cstddef>

namespace dsv4 {

// Bytes of a block, with what its kernel declares: compute capabilities 9.0 and 10.x have it, 12.x has 99 KiB.
inline constexpr size_t kSharedMemoryOfABlock = 227 * 1024;

}  // namespace dsv4
