// The number of thread block clusters that a GPU runs at once.
#pragma once

#include <cstddef>

#include "device/exec_context.h"

namespace dsv4 {

// Returns how many clusters of `blocks` blocks the current device runs at once, for a grid of `grid` blocks. Each block
// has `threads` threads and `shared_bytes` of dynamic shared memory. 0: none. Raises the kernel's limits as needed:
// more than 48 KiB, more than 8 blocks. The answer is cached per device, kernel and number of blocks.
int MaxActiveClusters(const ExecContext& ctx, const void* kernel, int blocks, int grid, int threads,
                      size_t shared_bytes);

}  // namespace dsv4
