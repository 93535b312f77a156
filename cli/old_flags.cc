#include "old_flags.h"

#include <string_view>

#include "io.h"

namespace dsv4::cli {

namespace {

constexpr const char* kWorksUntil = "0.3";

struct OldFlag {
  std::string_view command;  // "": all commands
  std::string_view name;
  std::string_view now;  // a flag, or a command in quotes
};
constexpr OldFlag kOldFlags[] = {
    {"", "--exchange", "--collectives"},
    {"", "--exchange-timeout", "--collective-timeout"},
    {"serve", "--cut-interval", "--prefix-interval"},
    {"bench", "--errors", "'dsv4 bench errors'"},
    {"bench", "--linears", "'dsv4 bench linears'"},
    {"bench", "--shapes", "'dsv4 bench linears --shapes'"},
    {"bench", "--draft-rows", "'dsv4 bench drafts --rows'"},
    {"bench", "--draft-right", "'dsv4 bench drafts --acceptance'"},
    {"bench", "--draft-repeats", "'dsv4 bench drafts --repeats'"},
    {"bench", "--first-token", "'dsv4 bench start'"},
    {"bench", "--disk", "'dsv4 synthesize'"},
    {"bench", "--disk-overflow", "'dsv4 synthesize --overflow'"},
};

bool IsIn(const OldFlag& flag, const CLI::App& command) {
  return flag.command.empty() || flag.command == command.get_name();
}

// Returns the table's entry of `option`, or null.
const OldFlag* Find(const CLI::App& command, const CLI::Option& option) {
  for (const OldFlag& flag : kOldFlags) {
    if (IsIn(flag, command) && option.check_lname(std::string(flag.name.substr(2)))) return &flag;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> OldNamesOf(const CLI::App& command, const std::string& flag) {
  std::vector<std::string> names;
  for (const OldFlag& old : kOldFlags) {
    if (IsIn(old, command) && old.now == flag) names.emplace_back(old.name);
  }
  return names;
}

bool IsOld(const CLI::App& command, const CLI::Option& option) { return Find(command, option) != nullptr; }

void HideOldFlags(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    if (IsOld(*app, *option)) option->group("");
  }
  for (CLI::App* command : app->get_subcommands([](const CLI::App*) { return true; })) HideOldFlags(command);
}

void NoteOldFlags(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const OldFlag* flag = option->count() > 0 ? Find(app, *option) : nullptr;
    if (flag == nullptr) continue;
    PrintNote(std::string(flag->name) + " is now " + std::string(flag->now) + "; the old flag works until " +
              kWorksUntil);
  }
  for (const CLI::App* command : app.get_subcommands()) NoteOldFlags(*command);
}

}  // namespace dsv4::cli
