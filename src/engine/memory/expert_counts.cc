// Files of how often experts were chosen.
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "dsv4/experts.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxCountsBytes = int64_t{64} << 20;
constexpr int kCountsVersion = 1;

}  // namespace

Result<ExpertCounts> ReadExpertCounts(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMaxCountsBytes));
  const auto broken = [&](const std::string& what) {
    return DataLoss(StrCat(path, ": ", what, "; write the file with --count-experts"));
  };
  if (!json.is_object() || !json.contains("dsv4_expert_counts") || json["dsv4_expert_counts"] != kCountsVersion)
    return broken("these are no counts of experts of this version");
  if (!json.contains("chosen") || !json["chosen"].is_array() || json["chosen"].empty())
    return broken("'chosen' is no list of layers");
  ExpertCounts counts;
  for (const Json& layer : json["chosen"]) {
    const auto number = counts.num_layers++;
    if (!layer.is_array() || layer.empty()) return broken(StrCat("layer ", number, " is no list of counts"));
    if (number == 0) counts.num_experts = static_cast<int64_t>(layer.size());
    if (static_cast<int64_t>(layer.size()) != counts.num_experts) {
      return broken(StrCat("layer ", number, " has ", layer.size(), " experts, layer 0 has ", counts.num_experts));
    }
    for (const Json& count : layer) {
      if (!count.is_number_unsigned()) return broken(StrCat("layer ", number, " holds what is no count"));
      counts.chosen.push_back(count.get<uint64_t>());
    }
  }
  return counts;
}

Status WriteExpertCounts(const std::string& path, const ExpertCounts& counts) {
  std::string text = StrCat("{\"dsv4_expert_counts\": ", kCountsVersion, ", \"chosen\": [");
  for (int64_t l = 0; l < counts.num_layers; ++l) {
    text += l == 0 ? "\n[" : ",\n[";
    for (int64_t e = 0; e < counts.num_experts; ++e)
      text += StrCat(e == 0 ? "" : ",", counts.chosen[static_cast<size_t>(l * counts.num_experts + e)]);
    text += "]";
  }
  return WriteFile(path, text + "\n]}\n");
}

}  // namespace dsv4
