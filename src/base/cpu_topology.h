// The cores that this process may use, and where threads on them should run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

// One hardware thread.
struct Core {
  int id = 0;       // the kernel's number
  int node = 0;     // NUMA node
  int sibling = 0;  // 0: the first usable hardware thread of its physical core, 1: the second, ...
  bool operator==(const Core&) const = default;
};

// "0-3,8" -> 0 1 2 3 8. Ignores parts that are not numbers or ranges.
std::vector<int> ParseCoreList(std::string_view text);

// The cores `ids` as /sys describes them. Without /sys: one node, and every core is physical. `root` is a prefix of
// /sys, for tests.
std::vector<Core> DescribeCores(const std::vector<int>& ids, const std::string& root = "");

// The cores that the calling thread may run on.
std::vector<Core> UsableCores();

// Cores for threads 0 .. num_threads-1. Requires num_threads <= `cores`. Every node gets its share of the threads, as
// contiguous numbers. Within a node, physical cores come first, then their second hardware threads.
std::vector<Core> PlaceThreads(std::vector<Core> cores, int num_threads);

int NumNodes(const std::vector<Core>& cores);

}  // namespace dsv4
