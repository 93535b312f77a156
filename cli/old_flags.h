// Flags that were renamed or moved to another command. An old flag works for one release. It is in no help text and in
// no completion script, and its use prints a note.
#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace dsv4::cli {

// Returns the old names of `flag` ("--collectives") in `command`.
std::vector<std::string> OldNamesOf(const CLI::App& command, const std::string& flag);

// Returns true if `option` of `command` is an old flag.
bool IsOld(const CLI::App& command, const CLI::Option& option);

// Removes old flags from the help of `app` and its sub-commands.
void HideOldFlags(CLI::App* app);

// Prints a note on stderr for each old flag that the command line uses.
void NoteOldFlags(const CLI::App& app);

}  // namespace dsv4::cli
