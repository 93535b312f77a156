#include "dsv4/machine.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "base/available_memory.h"
#include "base/cpu_topology.h"
#include "device/cpu_features.h"

namespace dsv4 {

namespace {

namespace fs = std::filesystem;

std::string Instructions() {
  if (CpuHasAmx()) return "AMX";
  if (CpuHasAvx512Vnni()) return "AVX-512 with VNNI";
  if (CpuHasAvx512()) return "AVX-512";
  if (CpuHasAvx2()) return "AVX2";
  return "neither AVX2 nor AVX-512";
}

// The devices /dev/nvidia0, /dev/nvidia1, ... that are open to this process: a container may have only some of them.
size_t CountGpuDevices(const std::string& root) {
  constexpr std::string_view kPrefix = "nvidia";
  std::error_code error;
  size_t count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(root + "/dev", error)) {
    const std::string name = entry.path().filename().string();
    count += name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
             std::all_of(name.begin() + kPrefix.size(), name.end(),
                         [](unsigned char c) { return std::isdigit(c) != 0; });
  }
  return count;
}

// The names that the driver has written: "Model: \t\t NVIDIA H200".
std::vector<std::string> DriversNames(const std::string& root) {
  constexpr std::string_view kField = "Model:";
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root + "/proc/driver/nvidia/gpus", error)) {
    std::ifstream file(entry.path() / "information");
    std::string line;
    while (std::getline(file, line)) {
      if (!line.starts_with(kField)) continue;
      const size_t begin = line.find_first_not_of(" \t", kField.size());
      if (begin != std::string::npos) names.push_back(line.substr(begin));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

MachineInfo DescribeMachine(const std::string& root) {
  MachineInfo machine = {.cores = static_cast<int>(UsableCores().size()),
                         .instructions = Instructions(),
                         .available_bytes = AvailableMemory(root)};
  const size_t count = CountGpuDevices(root);
  machine.gpus = DriversNames(root);
  const bool same = !machine.gpus.empty() && machine.gpus.front() == machine.gpus.back();
  if (machine.gpus.size() != count) machine.gpus.assign(count, same ? machine.gpus.front() : "GPU");
  return machine;
}

}  // namespace dsv4
