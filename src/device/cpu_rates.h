// Peak rates of the host's cores, measured: reference values for `dsv4 bench`.
#pragma once

#include "base/thread_pool.h"
#include "dsv4/status.h"

namespace dsv4 {

// Returns the bytes per second at which all threads of the pool together read a buffer of 512 MiB in huge pages. Each
// thread reads its own part and only adds the values. The best of several runs. `pool` may be null.
Result<double> CpuReadRate(ThreadPool* pool);

// Returns the fused float32 multiply-adds per second of all threads of the pool together: in registers, with the widest
// vectors that kernels may use (DSV4_CPU_ISA). The best of several runs.
double CpuFmaRate(ThreadPool* pool);

}  // namespace dsv4
