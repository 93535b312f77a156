// Files of expert counts: how often each expert was chosen.
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "dsv4/experts.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxCountsBytes = int64_t{2} << 20;  // the largest models: 61 layers of 384 experts
constexpr int kCountsVersion = 1;

}  // namespace

Result<ExpertCounts> ReadExpertCounts(const std::string& path) {
  const auto refused = [&](StatusCode code, const std::string& why) {
    return Status(code, StrCat("--expert-counts: ", why, "; write one with --count-experts FILE"));
  };
  const auto broken = [&](const std::string& what) { return refused(StatusCode::kDataLoss, StrCat(path, ": ", what)); };
  const Result<Json> read = ReadJsonFile(path, kMaxCountsBytes, FileFrom::kProgram);
  if (!read.ok()) return refused(read.status().code(), read.status().message());
  const Json& json = *read;
  if (!json.is_object() || !json.contains("dsv4_expert_counts") || json["dsv4_expert_counts"] != kCountsVersion)
    return broken("not a file of expert counts of this version");
  if (!json.contains("chosen") || !json["chosen"].is_array() || json["chosen"].empty())
    return broken("'chosen' is not a list of layers");
  ExpertCounts counts;
  for (const Json& layer : json["chosen"]) {
    const auto number = counts.num_layers++;
    if (!layer.is_array() || layer.empty()) return broken(StrCat("layer ", number, " is not a list of counts"));
    if (number == 0) counts.num_experts = static_cast<int64_t>(layer.size());
    if (static_cast<int64_t>(layer.size()) != counts.num_experts) {
      return broken(StrCat("layer ", number, " has ", layer.size(), " experts, layer 0 has ", counts.num_experts));
    }
    for (const Json& count : layer) {
      if (!count.is_number_unsigned()) return broken(StrCat("layer ", number, " has an element that is not a count"));
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

ExpertCountsFile::ExpertCountsFile(std::string path, ExpertCounts kept, ExpertCounts before)
    : path_(std::move(path)), kept_(std::move(kept)), before_(before), last_(std::move(before)) {}

bool ExpertCountsFile::Update(const ExpertCounts& now) {
  if (now.chosen == last_.chosen) return gained_;
  const size_t size = now.chosen.size();
  for (ExpertCounts* counts : {&kept_, &before_, &last_}) {
    if (counts->chosen.size() != size) *counts = {now.num_layers, now.num_experts, std::vector<uint64_t>(size)};
  }
  bool from_zero = false;  // the engine was opened again
  for (size_t i = 0; i < size; ++i) from_zero = from_zero || now.chosen[i] < last_.chosen[i];
  if (from_zero) {
    for (size_t i = 0; i < size; ++i) kept_.chosen[i] += last_.chosen[i] - before_.chosen[i];
    before_.chosen.assign(size, 0);
  }
  last_ = now;
  gained_ = true;
  return true;
}

Status ExpertCountsFile::Write() {
  if (!gained_) return {};
  ExpertCounts all = kept_;
  for (size_t i = 0; i < all.chosen.size(); ++i) all.chosen[i] += last_.chosen[i] - before_.chosen[i];
  DSV4_RETURN_IF_ERROR(WriteExpertCounts(path_, all));
  gained_ = false;
  return {};
}

}  // namespace dsv4
