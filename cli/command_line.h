// Parses the command line. Only command_line.cc, completions.cc, old_flags.cc and the files with flags use CLI11.
#pragma once

#include <functional>

namespace dsv4::cli {

// Returns the command of argv, ready to run; --help and --version are commands too. Throws a UsageError with one line
// that says what to do.
std::function<int()> ParseCommandLine(int argc, char** argv);

}  // namespace dsv4::cli
