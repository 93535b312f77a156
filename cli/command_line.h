// Flags to options: command_line.cc, flags.cc and completions.cc are the only files that know CLI11.
#pragma once

#include <functional>

namespace dsv4::cli {

// What argv asks for, ready to run. Throws UsageError with one line that says what to do.
// --help and --version are commands, too.
std::function<int()> ParseCommandLine(int argc, char** argv);

}  // namespace dsv4::cli
