#include "device/device_list.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/str.h"
#include "device/exchange.h"

namespace dsv4 {

namespace {

constexpr int kMostGpus = 1024;

// Parses a whole number from 0 to kMostGpus - 1 and nothing else.
std::optional<int> Number(std::string_view text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0 || value >= kMostGpus) return std::nullopt;
  return value;
}

Status Unknown(const std::string& name) {
  return InvalidArgument(
      StrCat("unknown device '", name,
             "'; use cpu, cuda, cuda:1, and for several ranks cpu*2, cuda:0,1, cuda:0-3 or cuda:0*2"));
}

Status WrongCount(const std::string& name) {
  return InvalidArgument(StrCat("device '", name, "': a model is divided among 1, 2, 4 or 8 ranks"));
}

bool IsNumber(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }

Result<std::vector<std::string>> Repeated(const std::string& name, const std::string& device, std::string_view count) {
  if (!IsNumber(count)) return Unknown(name);
  const std::optional<int> n = Number(count);
  if (!n || !IsRankCount(*n)) return WrongCount(name);
  return std::vector<std::string>(static_cast<size_t>(*n), device);
}

// "0,2", "0-3": GPU numbers.
Result<std::vector<int>> Gpus(const std::string& name, std::string_view list) {
  std::vector<int> gpus;
  while (true) {
    const std::string_view part = list.substr(0, list.find(','));
    const size_t dash = part.find('-');
    const std::optional<int> first = Number(part.substr(0, dash)),
                             last = dash == part.npos ? first : Number(part.substr(dash + 1));
    if (!first || !last) return Unknown(name);
    if (*last < *first) {
      return InvalidArgument(
          StrCat("device '", name, "': the range ", part, " is in descending order; use ", *last, "-", *first));
    }
    for (int gpu = *first; gpu <= *last; ++gpu) gpus.push_back(gpu);
    if (part.size() == list.size()) return gpus;
    list.remove_prefix(part.size() + 1);
  }
}

}  // namespace

bool NamesCpu(const std::string& name) { return name == "cpu" || name.starts_with("cpu*"); }

Result<std::vector<std::string>> RankDevices(const std::string& name) {
  if (name == "cpu" || name == "cuda") return std::vector<std::string>{name};
  if (name.starts_with("cpu*")) return Repeated(name, "cpu", std::string_view(name).substr(4));
  if (name == "cuda:") return InvalidArgument("device 'cuda:': the GPU's number is missing; use cuda or cuda:0");
  if (!name.starts_with("cuda:")) return Unknown(name);
  const std::string_view list = std::string_view(name).substr(5);
  if (const size_t star = list.find('*'); star != list.npos) {
    const std::optional<int> gpu = Number(list.substr(0, star));
    if (list.find(',') != list.npos || list.find('-') != list.npos) {
      return InvalidArgument(StrCat("device '", name,
                                    "': a list gives each GPU one rank, and *N needs a single GPU, for example "
                                    "cuda:0*2"));
    }
    if (!gpu) return Unknown(name);
    return Repeated(name, StrCat("cuda:", *gpu), list.substr(star + 1));
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<int> gpus, Gpus(name, list));
  std::vector<std::string> names;
  for (const int gpu : gpus) {
    if (std::count(gpus.begin(), gpus.end(), gpu) > 1) {
      return InvalidArgument(
          StrCat("device '", name, "' names GPU ", gpu, " twice; cuda:", gpu, "*2 makes two ranks of one GPU"));
    }
    names.push_back(StrCat("cuda:", gpu));
  }
  if (!IsRankCount(static_cast<int64_t>(names.size()))) {
    return InvalidArgument(
        StrCat("device '", name, "': ", names.size(), " GPUs; a model is divided among 1, 2, 4 or 8 ranks"));
  }
  return names;
}

}  // namespace dsv4
