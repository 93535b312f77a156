#include "completions.h"

#include <vector>

#include "flags.h"

namespace dsv4::cli {

namespace {

// What follows a flag.
enum class Follows { kNothing, kFile, kFolder, kChoice, kText };

struct CompletedFlag {
  std::vector<std::string> names;  // -m, --model
  std::string help;
  Follows follows = Follows::kNothing;
  std::vector<std::string> choices;
};

struct CompletedCommand {
  std::string name;
  std::string help;
  std::vector<CompletedFlag> flags;
  std::vector<std::string> words;  // what it takes besides flags
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

std::vector<CompletedCommand> DescribeCommands(const CLI::App& app) {
  std::vector<CompletedCommand> commands;
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) {
    CompletedCommand& command = commands.emplace_back();
    command.name = c->get_name();
    command.help = c->get_description();
    if (command.name == "completions") command.words = {"bash", "zsh", "fish"};
    for (const CLI::Option* option : c->get_options()) {
      if (!option->get_positional()) command.flags.push_back(DescribeFlag(*option));
    }
  }
  return commands;
}

std::string Joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

// With a backslash before each of these characters.
std::string Escaped(const std::string& text, std::string_view characters) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// In single quotes, as bash and zsh read them.
std::string Quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
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
    names += command.name + " ";
    std::string words = Joined(command.words, " ") + " ";
    for (const CompletedFlag& flag : command.flags) {
      words += Joined(flag.names, " ") + " ";
      if (flag.follows == Follows::kNothing) continue;
      std::vector<std::string> cases;
      for (const std::string& name : flag.names) cases.push_back(Quoted(command.name + " " + name));
      values += "    " + Joined(cases, " | ") + ") " + BashValues(flag) + "; return ;;\n";
    }
    flags += "    " + command.name + ") words " + Quoted(words) + " ;;\n";
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
         "  case \"${COMP_WORDS[1]} $before\" in\n" +
         values +
         "  esac\n"
         "  case ${COMP_WORDS[1]} in\n" +
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
    names += "    " + Quoted(command.name + ":" + Escaped(command.help, ":\\")) + "\n";
    cases += "    " + command.name + ")\n      _arguments";
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
         "  case $command in\n" +
         cases +
         "  esac\n}\n"
         "if [ \"$funcstack[1]\" = _dsv4 ]; then _dsv4 \"$@\"; else compdef _dsv4 dsv4; fi\n";
}

std::string FishQuoted(const std::string& text) { return "'" + Escaped(text, "'\\") + "'"; }

std::string FishFlag(const std::string& command, const CompletedFlag& flag) {
  std::string line = "complete -c dsv4 -n '__fish_seen_subcommand_from " + command + "'";
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
    script += "complete -c dsv4 -n __fish_use_subcommand -a " + command.name + " -d " + FishQuoted(command.help) + "\n";
    for (const CompletedFlag& flag : command.flags) script += FishFlag(command.name, flag);
    if (command.words.empty()) continue;
    script += "complete -c dsv4 -n '__fish_seen_subcommand_from " + command.name + "' -a " +
              FishQuoted(Joined(command.words, " ")) + "\n";
  }
  return script;
}

}  // namespace

std::string CompletionScript(const CLI::App& app, Shell shell) {
  const std::vector<CompletedCommand> commands = DescribeCommands(app);
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
