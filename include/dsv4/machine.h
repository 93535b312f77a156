// The machine that this process runs on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4/export.h"

namespace dsv4 {

struct MachineInfo {
  int cores = 0;                       // hardware threads that this process may use
  std::string instructions;            // largest set that kernels are compiled for: "AVX-512 with VNNI"
  int64_t available_bytes = 0;         // memory that this process may still allocate; 0: unknown
  std::vector<std::string> gpus = {};  // names of the NVIDIA GPUs, "GPU" if unknown
};

// Reads files of /proc and /dev, without a GPU driver. `root` is a prefix of these folders, for
// tests.
DSV4_API MachineInfo DescribeMachine(const std::string& root = "");

}  // namespace dsv4
