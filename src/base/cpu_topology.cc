#include "base/cpu_topology.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include <sched.h>

#include "base/check.h"
#include "base/str.h"

namespace dsv4 {

namespace {

constexpr int kMaxCores = 1 << 16;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<int> ParseCoreList(std::string_view text) {
  std::vector<int> ids;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), range.size() + 1));
    const char* const end = range.data() + range.size();
    int first = 0, last = 0;
    auto [p, error] = std::from_chars(range.data(), end, first);
    if (error != std::errc()) continue;
    last = first;
    if (p != end && *p == '-') error = std::from_chars(p + 1, end, last).ec;
    if (error != std::errc() || first < 0 || last >= kMaxCores) continue;
    for (int id = first; id <= last; ++id) ids.push_back(id);
  }
  return ids;
}

std::vector<Core> DescribeCores(const std::vector<int>& ids, const std::string& root) {
  const std::string system = root + "/sys/devices/system/";
  std::map<int, int> node_of;
  for (const int node : ParseCoreList(FirstLine(system + "node/online"))) {
    for (const int id : ParseCoreList(FirstLine(StrCat(system, "node/node", node, "/cpulist")))) node_of[id] = node;
  }
  const std::set<int> usable(ids.begin(), ids.end());
  std::vector<Core> cores;
  for (const int id : usable) {
    int sibling = 0;
    for (const int other : ParseCoreList(FirstLine(StrCat(system, "cpu/cpu", id, "/topology/thread_siblings_list")))) {
      if (other < id && usable.contains(other)) ++sibling;
    }
    const auto node = node_of.find(id);
    cores.push_back({.id = id, .node = node == node_of.end() ? 0 : node->second, .sibling = sibling});
  }
  return cores;
}

std::vector<Core> UsableCores() {
  std::vector<int> ids;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int id = 0; id < CPU_SETSIZE; ++id) {
      if (CPU_ISSET(id, &set)) ids.push_back(id);
    }
  }
  return DescribeCores(ids);
}

std::vector<Core> PlaceThreads(std::vector<Core> cores, int num_threads) {
  DSV4_CHECK(num_threads <= static_cast<int>(cores.size()), num_threads, " threads on ", cores.size(), " cores");
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.node, a.sibling, a.id) < std::tie(b.node, b.sibling, b.id);
  });
  std::vector<Core> placed;
  const size_t total = cores.size(), threads = static_cast<size_t>(num_threads);
  for (size_t begin = 0; begin < total;) {
    size_t end = begin;
    while (end < total && cores[end].node == cores[begin].node) ++end;
    const size_t share = threads * end / total - threads * begin / total;
    placed.insert(placed.end(), cores.begin() + static_cast<int64_t>(begin),
                  cores.begin() + static_cast<int64_t>(begin + share));
    begin = end;
  }
  return placed;
}

int NumNodes(const std::vector<Core>& cores) {
  std::set<int> nodes;
  for (const Core& core : cores) nodes.insert(core.node);
  return std::max(1, static_cast<int>(nodes.size()));
}

}  // namespace dsv4
