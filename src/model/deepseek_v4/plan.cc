#include "model/deepseek_v4/plan.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/str.h"

namespace dsv4 {

namespace {

// The number behind `key` in a file of "key value" lines; an empty key reads the file's first number.
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

// For loading, then for a step.
int64_t NeededBytes(const MemoryPlan& p, int64_t page_bytes) {
  const int64_t running = p.activation_bytes + p.kv_fixed_bytes + page_bytes;
  return p.weight_bytes + p.widened_bytes + p.scratch_bytes + std::max(running, p.loading_bytes);
}

// What the limits of the group at `path` and of those above it leave.
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

KvBytes KvFootprint(const KvSpec& spec) {
  const KvLayout layout = MakeKvLayout(spec);
  int64_t rows_bytes = 0;  // of a page, without its alignment
  for (const LayerLayout& layer : layout.layers) {
    for (const CompressorLayout& c : {layer.main, layer.index})
      rows_bytes += c.rows_per_page * c.row.row_bytes();
  }
  return {static_cast<double>(rows_bytes) / static_cast<double>(layout.page_tokens), layout.fixed_bytes};
}

int64_t HostScratchBytes(const Config& config, int64_t max_context, int num_threads) {
  constexpr int64_t kScoredTokens = 8;      // kTokenTile of ops/index_topk/index_topk_cpu.cc
  constexpr int64_t kSharedRows = 16384;    // kMaxShared of ops/sparse_attention/sparse_attention_cpu.cc
  int64_t scores = 0, rows = std::min(config.window, kSharedRows);
  for (const int64_t ratio : config.compress_ratios) {
    const LayerRule& rule = *FindLayerRule(ratio);
    if (rule.ratio == 0) continue;
    if (rule.indexed) scores = kScoredTokens * (max_context / rule.ratio) * 4;
    rows = std::max(rows, std::min(config.window + max_context / rule.ratio, kSharedRows));
  }
  return scores * num_threads + rows * config.head_dim * 4;
}

MemoryPlan MakeMemoryPlan(const PlanInputs& inputs) {
  const KvBytes kv = KvFootprint(inputs.kv);
  MemoryPlan plan{};
  plan.weight_bytes = inputs.weight_bytes;
  plan.widened_bytes = inputs.widened_bytes;
  plan.kv_bytes_per_1k_tokens = kv.per_token * 1000;
  plan.kv_fixed_bytes = kv.fixed;
  plan.activation_bytes = inputs.activation_bytes;
  plan.scratch_bytes = inputs.scratch_bytes;
  plan.loading_bytes = inputs.loading_bytes;
  plan.available_bytes = inputs.available_bytes;
  plan.max_context = plan.max_context_that_fits = inputs.max_context;
  if (inputs.available_bytes == 0) return plan;
  const int64_t needed = inputs.weight_bytes + inputs.widened_bytes + inputs.activation_bytes + inputs.scratch_bytes + kv.fixed;
  const auto left = static_cast<double>(inputs.available_bytes - needed);
  if (left < 0) {
    plan.max_context_that_fits = 0;
  } else if (left < kv.per_token * static_cast<double>(inputs.max_context)) {
    plan.max_context_that_fits = static_cast<int64_t>(left / kv.per_token);
  }
  return plan;
}

bool Fits(const MemoryPlan& p, int64_t page_bytes) {
  return p.available_bytes == 0 || NeededBytes(p, page_bytes) <= p.available_bytes;
}

Status CheckPlan(const MemoryPlan& p, int64_t page_bytes, std::string_view remedy) {
  if (Fits(p, page_bytes)) return {};
  return ResourceExhausted(StrCat(
      "the model does not fit ", p.device, ": weights ", p.weight_bytes + p.widened_bytes, " bytes + scratch of ops ",
      p.scratch_bytes, " + the larger of the loader's buffers, ", p.loading_bytes, ", and activations, ", p.activation_bytes,
      ", with one sequence's state, ", p.kv_fixed_bytes + page_bytes, " = ", NeededBytes(p, page_bytes), " bytes, ", p.available_bytes,
      " are free; ", remedy));
}

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
