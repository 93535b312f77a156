// The memory that this process may still allocate.
#pragma once

#include <cstdint>
#include <string>

namespace dsv4 {

// Returns the smaller of the kernel's available memory and the rest under the limits of the process's control groups.
// Both cgroup versions count; page cache counts as free. 0: unknown. `root` is a prefix of /proc and /sys, for tests.
int64_t AvailableMemory(const std::string& root = "");

}  // namespace dsv4
