// dsv4 man: manual pages, made from the commands and flags that the program parses.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dsv4/version.h"
#include "errors.h"
#include "flags.h"
#include "io.h"
#include "old_flags.h"
#include "other_commands.h"
#include "suggestion.h"

namespace dsv4::cli {

namespace {

// The program's page has more sections.
constexpr std::string_view kProgramSections = R"(.SH EXIT STATUS
.TP
.B 0
Success.
.TP
.B 1
The command failed. One line on standard error says why.
.TP
.B 2
The command line is wrong.
.TP
.B 130
The command was ended by Ctrl\-C.
.SH ENVIRONMENT
.TP
.B DSV4_CPU_ISA
Largest instruction set of CPU kernels: generic, avx2, avx512, avx512vnni or amx.
.TP
.BR XDG_STATE_HOME ", " HOME
.B dsv4 chat
keeps its history in dsv4/chat\-history of the first, or else in .local/state of the second.
.TP
.BR NOTIFY_SOCKET ", " WATCHDOG_USEC ", " WATCHDOG_PID
Set by systemd. \fBdsv4 serve\fR reports there when it takes requests and when it stops.
.SH FILES
.TP
.I ../share/dsv4/models/nano
The bundled model, seen from the folder of the program. Commands use it without \fB\-m\fR.
)";

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Text as roff prints it unchanged. All hyphens are ASCII, so that flags can be searched and copied.
std::string Roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (out.empty() && (c == '.' || c == '\'')) out += "\\&";
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Bold(std::string_view text) { return "\\fB" + Roff(text) + "\\fR"; }
std::string Italic(std::string_view text) { return "\\fI" + Roff(text) + "\\fR"; }

std::string Upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// "dsv4 bench decode", with `between` in place of the spaces.
std::string PathWith(const CLI::App& command, const std::string& between) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : PathWith(*parent, between) + between + command.get_name();
}

std::string Entry(const CLI::Option& option) {
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + Bold(name); };
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) add("--" + name);
  if (option.get_positional()) names = Italic(Upper(option.get_name(true, true)));
  const bool has_value = !option.get_positional() && option.get_items_expected_max() > 0;
  if (has_value) names += " " + Italic(option.get_type_name());
  return ".TP\n" + names + "\n" + Roff(option.get_description()) + "\n";
}

// The flags by their titles in --help, in its order.
std::string Flags(const CLI::App& command) {
  std::string text = ".SH OPTIONS\n";
  for (const std::string& group : command.get_groups()) {
    std::string entries;
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_group() == group && !group.empty() && !IsOld(command, *option)) entries += Entry(*option);
    }
    if (entries.empty()) continue;
    if (group != "Options") text += ".SS " + Roff(group) + "\n";
    text += entries;
  }
  return text;
}

std::string Commands(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : CommandsOf(app)) {
    text += ".TP\n" + Bold(PathWith(*command, "-")) + "(1)\n" + Roff(command->get_description()) + "\n";
  }
  return text.empty() ? "" : ".SH COMMANDS\n" + text;
}

// The lines of the footer that are indented, as code.
std::string Examples(const CLI::App& command) {
  std::istringstream footer(command.get_footer());
  std::string text;
  for (std::string line; std::getline(footer, line);) {
    if (line.starts_with("  ")) text += Roff(line.substr(2)) + "\n";
  }
  return text.empty() ? "" : ".SH EXAMPLE\n.EX\n" + text + ".EE\n";
}

std::string Synopsis(const CLI::App& command) {
  std::string text = ".SH SYNOPSIS\n" + Bold(PathWith(command, " ")) + " [" + Italic("OPTION") + "]...";
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) text += " [" + Italic(Upper(option->get_name(true, true))) + "]";
  }
  if (!CommandsOf(command).empty()) text += " [" + Italic("COMMAND") + "]";
  return text + "\n";
}

std::string ManPage(const CLI::App& command) {
  const bool program = command.get_parent() == nullptr;
  const std::string name = PathWith(command, "-");
  std::string text = ".\\\" Made by dsv4 man.\n.TH " + Roff(Upper(name)) + " 1 \"\" \"dsv4 " +
                     Roff(GetBuildInfo().version) + "\" \"User Commands\"\n";
  // apropos reads this line.
  text += ".SH NAME\n" + Roff(name) + " \\- " + Roff(command.get_description()) + "\n" + Synopsis(command);
  text += Commands(command) + Flags(command) + Examples(command);
  if (program) text += kProgramSections;
  const std::string parent = program ? "" : PathWith(*command.get_parent(), "-");
  if (!program) text += ".SH SEE ALSO\n.BR " + Roff(parent) + " (1)\n";
  return text;
}

void WritePages(const CLI::App& command, const std::filesystem::path& folder) {
  WriteOutput((folder / (PathWith(command, "-") + ".1")).string(), ManPage(command));
  for (const CLI::App* part : CommandsOf(command)) WritePages(*part, folder);
}

// The command that the words name, such as "bench decode".
const CLI::App& Named(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> parts = CommandsOf(*command);
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const auto* c) { return c->get_name() == word; });
    if (found == parts.end()) {
      std::vector<std::string> names;
      for (const CLI::App* part : parts) names.push_back(part->get_name());
      throw UsageError("there is no command '" + PathWith(*command, " ") + " " + word + "'" + Suggestion(word, names));
    }
    command = *found;
  }
  return *command;
}

}  // namespace

void AddMan(CLI::App* app, Command* chosen) {
  const auto words = std::make_shared<std::vector<std::string>>();
  const auto folder = std::make_shared<std::string>();
  CLI::App* c = AddCommand(app, "man", "Print the manual page of a command", "dsv4 man serve | man -l -");
  c->add_option("command", *words, "command, with its sub-command (default: the program's own page)");
  AddText(c, "-o,--output", kFolderType, "write the pages of the program and of all commands to this folder",
          [=](const std::string& text) { *folder = text; });
  c->final_callback([=] {
    if (folder->empty()) {
      const std::string page = ManPage(Named(*app, *words));
      *chosen = [page] {
        Print(page);
        return kExitDone;
      };
      return;
    }
    if (!words->empty()) throw UsageError("man -o writes all pages: remove '" + words->front() + "'");
    WritePages(*app, *folder);
    *chosen = [] { return kExitDone; };
  });
}

}  // namespace dsv4::cli
