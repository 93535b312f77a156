// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace dsv4 {

// What the kernel calls available, and what the limits of the process's control groups leave (both versions; page cache
// counts as free). 0: unknown. `root` stands before /proc and /sys.
int64_t AvailableMemory(const std::string& root = "");

}  // namespace dsv4
