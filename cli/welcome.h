// The text that a user sees who types `dsv4` alone at a terminal.
#pragma once

#include <cstddef>
#include <string>

#include "dsv4/machine.h"

namespace dsv4::cli {

struct Welcome {
  MachineInfo machine;
  bool has_gpu_code = false;       // the build has kernels for GPUs
  bool has_bundled_model = false;  // commands without -m work
};

// The machine, first commands, and how to get a large model. Lines of prose break at `columns`.
std::string WelcomeText(const Welcome& welcome, size_t columns);

}  // namespace dsv4::cli
