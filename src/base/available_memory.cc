#include "base/available_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/str.h"

namespace dsv4 {

namespace {

// The number that follows `key` in a file of "key value" lines. With an empty key: the file's first number.
std::optional<int64_t> ReadNumber(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (!key.empty() && word != key) continue;
    if (!key.empty() && !(file >> word)) break;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;  // "max": no limit
    return value;
  }
  return std::nullopt;
}

struct GroupFiles {
  std::string_view mount, limit, usage, page_cache;
};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_cache"};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "file"};

// Memory that the limits of the group at `path` and of its ancestors leave free.
std::optional<int64_t> LeftInGroup(const std::string& root, const GroupFiles& files, std::string path) {
  std::optional<int64_t> left;
  while (true) {
    const std::string dir = StrCat(root, files.mount, path, "/");
    const auto limit = ReadNumber(dir + std::string(files.limit), "");
    const auto usage = ReadNumber(dir + std::string(files.usage), "");
    if (limit && usage) {
      const int64_t cache = std::min(ReadNumber(dir + "memory.stat", files.page_cache).value_or(0), *usage);
      left = std::min(left.value_or(*limit), std::max<int64_t>(*limit - (*usage - cache), 0));
    }
    if (path.empty()) return left;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  std::optional<int64_t> available = ReadNumber(root + "/proc/meminfo", "MemAvailable:");
  if (!available) return 0;
  *available *= 1024;
  std::ifstream groups(root + "/proc/self/cgroup");  // "4:memory:/path" and "0::/path"
  std::string line;
  while (std::getline(groups, line)) {
    const size_t memory = line.find(":memory:/");
    const bool version1 = memory != std::string::npos;
    if (!version1 && !line.starts_with("0::/")) continue;
    std::string path = version1 ? line.substr(memory + 8) : line.substr(3);
    while (!path.empty() && path.back() == '/') path.pop_back();
    const auto left = LeftInGroup(root, version1 ? kVersion1 : kVersion2, path);
    if (left) available = std::min(*available, *left);
  }
  return *available;
}

}  // namespace dsv4
