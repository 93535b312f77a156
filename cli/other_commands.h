// Commands that use no model.
#pragma once

#include <CLI/App.hpp>

#include "flags.h"

namespace dsv4::cli {

// Each stores its command in `chosen`, like AddBench.
void AddHealth(CLI::App* app, Command* chosen);
void AddMan(CLI::App* app, Command* chosen);

}  // namespace dsv4::cli
