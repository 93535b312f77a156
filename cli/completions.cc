#include "completions.h"

#include <vector>

#include "flags.h"
#include "old_flags.h"

namespace dsv4::cli {

namespace {

// The word after a flag.
enum class Follows { kNothing, kFile, kFolder, kChoice, kText };

struct CompletedFlag {
  std::vector<std::string> names;  // -m, --model
  std::string help;
  Follows follows = Follows::kNothing;
  std::vector<std::string> choices;
};

struct CompletedCommand {
  std::string name;    // "bench", or "bench decode" for a sub-command
  std::string parent;  // "" for a command, otherwise "bench"
  std::string help;
  std::vector<CompletedFlag> flags;
  std::vector<std::string> words;  // arguments that are not flags
};

CompletedFlag DescribeFlag(const CLI::Option& option) {
  CompletedFlag flag{.names = {}, .help = option.get_description(), .follows = Follows::kText, .choices = {}};
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  const std::string type = option.get_type_name();
  flag.choices = ChoicesOf(option);
  if (option.get_items_expected_max() == 0)
    flag.follows = Follows::kNothing;
  else if (!flag.choices.empty())
    flag.follows = Follows::kChoice;
  else if (type == kFileType)
    flag.follows = Follows::kFile;
  else if (type == kFolderType)
    flag.follows = Follows::kFolder;
  return flag;
}

// Appends the commands of `app`, each followed by its sub-commands.
void DescribeCommands(const CLI::App& app, const std::string& parent, std::vector<CompletedCommand>* commands) {
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) {
    CompletedCommand command{.name = parent.empty() ? c->get_name() : parent + " " + c->get_name(),
                             .parent = parent,
                             .help = c->get_description(),
                             .flags = {},
                             .words = {}};
    if (command.name == "completions") command.words = {"bash", "zsh", "fish"};
    for (const CLI::App* part : c->get_subcommands([](const CLI::App*) { return true; }))
      command.words.push_back(part->get_name());
    for (const CLI::Option* option : c->get_options()) {
      if (!option->get_positional() && !IsOld(*c, *option)) command.flags.push_back(DescribeFlag(*option));
    }
    commands->push_back(command);
    DescribeCommands(*c, command.name, commands);
  }
}

std::string Joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// Returns `text` with a backslash before each of `characters`.
std::string Escaped(const std::string& text, std::string_view characters) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// Returns `text` in single quotes for bash and zsh.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// A label of a case statement. A sub-command contains a space.
std::string CaseLabel(const CompletedCommand& command) {
  return command.parent.empty() ? command.name : Quoted(command.name);
}

// Returns "'bench decode' | 'bench prefill' | ...", the labels of all sub-commands.
std::string SubcommandLabels(const std::vector<CompletedCommand>& commands) {
  std::vector<std::string> labels;
  for (const CompletedCommand& command : commands) {
    if (!command.parent.empty()) labels.push_back(CaseLabel(command));
  }
  return Joined(labels, " | ");
}

std::string BashValues(const CompletedFlag& flag) {
  switch (flag.follows) {
    case Follows::kChoice:
      return "words " + Quoted(Joined(flag.choices, " "));
    case Follows::kFile:
      return "files -f";
    case Follows::kFolder:
      return "files -d";
    default:
      return "COMPREPLY=()";
  }
}

std::string BashScript(const std::vector<CompletedCommand>& commands) {
  std::string names, values, flags;
  for (const CompletedCommand& command : commands) {
    if (command.parent.empty()) names += command.name + " ";
    std::string words = Joined(command.words, " ") + " ";
    for (const CompletedFlag& flag : command.flags) {
      words += Joined(flag.names, " ") + " ";
      if (flag.follows == Follows::kNothing) continue;
      std::vector<std::string> cases;
      for (const std::string& name : flag.names) cases.push_back(Quoted(command.name + " " + name));
      values += "    " + Joined(cases, " | ") + ") " + BashValues(flag) + "; return ;;\n";
    }
    flags += "    " + CaseLabel(command) + ") words " + Quoted(words) + " ;;\n";
  }
  return "# Completions of dsv4 for bash:  source <(dsv4 completions bash)\n"
         "_dsv4() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$word\"); }\n"
         "  files() { compopt -o filenames 2>/dev/null || :; mapfile -t COMPREPLY < <(compgen \"$1\" -- \"$word\"); }\n"
         "  COMPREPLY=()\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "    words " +
         Quoted(names + "--help --version") +
         "\n    return\n  fi\n"
         "  local command=${COMP_WORDS[1]}\n"
         "  case \"$command ${COMP_WORDS[2]}\" in\n"
         "    " +
         SubcommandLabels(commands) +
         ") if [ \"$COMP_CWORD\" -gt 2 ]; then command+=\" ${COMP_WORDS[2]}\"; fi ;;\n"
         "  esac\n"
         "  case \"$command $before\" in\n" +
         values +
         "  esac\n"
         "  case $command in\n" +
         flags +
         "  esac\n}\n"
         "complete -F _dsv4 dsv4\n";
}

std::string ZshSpec(const CompletedFlag& flag) {
  const std::string rest = "[" + Escaped(flag.help, "[]:\\") + "]";
  std::string value;
  switch (flag.follows) {
    case Follows::kNothing:
      break;
    case Follows::kChoice:
      value = ":value:(" + Joined(flag.choices, " ") + ")";
      break;
    case Follows::kFile:
      value = ":file:_files";
      break;
    case Follows::kFolder:
      value = ":folder:_files -/";
      break;
    case Follows::kText:
      value = ":value: ";
      break;
  }
  std::string specs;
  for (const std::string& name : flag.names) specs += " \\\n        " + Quoted("*" + name + rest + value);
  return specs;
}

std::string ZshScript(const std::vector<CompletedCommand>& commands) {
  std::string names, cases;
  for (const CompletedCommand& command : commands) {
    if (command.parent.empty()) names += "    " + Quoted(command.name + ":" + Escaped(command.help, ":\\")) + "\n";
    cases += "    " + CaseLabel(command) + ")\n      _arguments";
    for (const CompletedFlag& flag : command.flags) cases += ZshSpec(flag);
    if (!command.words.empty()) cases += " \\\n        " + Quoted("1:word:(" + Joined(command.words, " ") + ")");
    cases += " ;;\n";
  }
  return "#compdef dsv4\n"
         "# Completions of dsv4 for zsh:  source <(dsv4 completions zsh)\n"
         "_dsv4() {\n"
         "  local -a commands=(\n" +
         names +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
         "  local command=$words[2]\n"
         "  shift words\n  (( CURRENT-- ))\n"
         "  case \"$command $words[2]\" in\n"
         "    " +
         SubcommandLabels(commands) +
         ") if (( CURRENT > 2 )); then command+=\" $words[2]\"; shift words; (( CURRENT-- )); fi ;;\n"
         "  esac\n"
         "  case $command in\n" +
         cases +
         "  esac\n}\n"
         "if [ \"$funcstack[1]\" = _dsv4 ]; then _dsv4 \"$@\"; else compdef _dsv4 dsv4; fi\n";
}

std::string FishQuoted(const std::string& text) { return "'" + Escaped(text, "'\\") + "'"; }

// The condition under which fish offers the words of `command`.
std::string FishCondition(const CompletedCommand& command) {
  const std::string seen = "__fish_seen_subcommand_from ";
  if (!command.parent.empty())
    return "'" + seen + command.parent + "; and " + seen + command.name.substr(command.parent.size() + 1) + "'";
  const bool has_parts = !command.words.empty() && command.name != "completions";
  return "'" + seen + command.name + (has_parts ? "; and not " + seen + Joined(command.words, " ") : "") + "'";
}

std::string FishFlag(const std::string& condition, const CompletedFlag& flag) {
  std::string line = "complete -c dsv4 -n " + condition;
  for (const std::string& name : flag.names) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  switch (flag.follows) {
    case Follows::kNothing:
      break;
    case Follows::kChoice:
      line += " -x -a " + FishQuoted(Joined(flag.choices, " "));
      break;
    case Follows::kFile:
      line += " -r -F";
      break;
    case Follows::kFolder:
      line += " -x -a '(__fish_complete_directories)'";
      break;
    case Follows::kText:
      line += " -x";
      break;
  }
  return line + " -d " + FishQuoted(flag.help) + "\n";
}

std::string FishScript(const std::vector<CompletedCommand>& commands) {
  std::string script = "# Completions of dsv4 for fish:  dsv4 completions fish | source\ncomplete -c dsv4 -f\n";
  for (const CompletedCommand& command : commands) {
    if (command.parent.empty())
      script += "complete -c dsv4 -n __fish_use_subcommand -a " + command.name + " -d " + FishQuoted(command.help) +
                "\n";
    const std::string condition = FishCondition(command);
    for (const CompletedFlag& flag : command.flags) script += FishFlag(condition, flag);
    if (command.words.empty()) continue;
    script += "complete -c dsv4 -n " + condition + " -a " + FishQuoted(Joined(command.words, " ")) + "\n";
  }
  return script;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, Shell shell) {
  std::vector<CompletedCommand> commands;
  DescribeCommands(app, /*parent=*/"", &commands);
  switch (shell) {
    case Shell::kBash:
      return BashScript(commands);
    case Shell::kZsh:
      return ZshScript(commands);
    case Shell::kFish:
      return FishScript(commands);
  }
  return "";
}

}  // namespace dsv4::cli
