// What the GPU can place of a kernel that is launched in clusters.
#pragma once

#include <cstddef>

#include "device/exec_context.h"

namespace dsv4 {

// Clusters of `blocks` blocks, `threads` threads and `shared_bytes` of dynamic shared memory each, that the current
// device runs at once, of a grid of `grid` blocks; 0: none. Allows the kernel what it needs for them: more than 48 KiB,
// more than 8 blocks. Asked once per device, kernel and number of blocks.
int MaxActiveClusters(const ExecContext& ctx, const void* kernel, int blocks, int grid, int threads,
                      size_t shared_bytes);

}  // namespace dsv4
