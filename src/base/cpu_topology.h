// The cores that this process may use, and where threads on them should run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

// One hardware thread.
struct Core {
  int id = 0;       // as the kernel numbers them
  int node = 0;     // of memory (NUMA)
  int sibling = 0;  // 0: the first usable hardware thread of its physical core, 1: the second, ...
  bool operator==(const Core&) const = default;
};

// "0-3,8" -> 0 1 2 3 8; what is not such a list is left out.
std::vector<int> ParseCoreList(std::string_view text);

// The cores `ids` with what /sys says about them; without it one node, and every core a physical one. `root` stands
// before /sys.
std::vector<Core> DescribeCores(const std::vector<int>& ids, const std::string& root = "");

// Those that the calling thread may run on.
std::vector<Core> UsableCores();

// Cores for threads 0 .. num_threads-1, which must not be more than `cores`: every node gets its share of them, as
// contiguous numbers; within a node physical cores come first, then their second hardware threads.
std::vector<Core> PlaceThreads(std::vector<Core> cores, int num_threads);

int NumNodes(const std::vector<Core>& cores);

}  // namespace dsv4
