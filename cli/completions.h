// Scripts with which shells complete commands, made from the flags of the commands.
#pragma once

#include <string>

#include <CLI/App.hpp>

namespace dsv4::cli {

enum class Shell { kBash, kZsh, kFish };

// Returns a script that completes `dsv4`: commands, sub-commands, flags, names that a flag accepts, files and folders.
std::string CompletionScript(const CLI::App& app, Shell shell);

}  // namespace dsv4::cli
