// What the host's cores can do at most, measured: the yardsticks of `dsv4 bench`.
#pragma once

#include "base/thread_pool.h"
#include "dsv4/status.h"

namespace dsv4 {

// Bytes a second at which the pool's threads together read a buffer of 512 MiB in huge pages, each its own part, with
// nothing done to them but an addition. The best of several runs. `pool` may be null.
Result<double> CpuReadRate(ThreadPool* pool);

// Fused float32 multiply-adds a second of the pool's threads together, in registers, with the widest vectors that
// kernels may use (DSV4_CPU_ISA). The best of several runs.
double CpuFmaRate(ThreadPool* pool);

}  // namespace dsv4
