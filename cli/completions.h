// Completion scripts of shells, made from the flags that the commands have.
#pragma once

#include <string>

#include <CLI/App.hpp>

namespace dsv4::cli {

enum class Shell { kBash, kZsh, kFish };

// What the shell reads to complete `dsv4`: commands, flags, the names that a flag accepts, files and folders.
std::string CompletionScript(const CLI::App& app, Shell shell);

}  // namespace dsv4::cli
