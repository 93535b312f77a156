// The names of the GPU kernels in the tree: a plan must print one of them.
#pragma once

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>

namespace dsv4::test {

inline std::set<std::string> KernelsOfTheTree() {
  std::set<std::string> kernels;
  const std::regex kernel(R"(__global__[^{;]*?\b([A-Z]\w*Kernel)\s*\()");
  for (const char* folder : {DSV4_SOURCE_DIR "/src/ops", DSV4_SOURCE_DIR "/src/device"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".cu" && entry.path().extension() != ".cuh") continue;
      std::ifstream file(entry.path());
      const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      for (std::sregex_iterator at(text.begin(), text.end(), kernel), end; at != end; ++at) kernels.insert((*at)[1]);
    }
  }
  return kernels;
}

// The kernels that a line names.
inline std::set<std::string> KernelsNamed(const std::string& line) {
  std::set<std::string> named;
  const std::regex name(R"(\b[A-Z]\w*Kernel\b)");
  for (std::sregex_iterator at(line.begin(), line.end(), name), end; at != end; ++at) named.insert(at->str());
  return named;
}

}  // namespace dsv4::test
