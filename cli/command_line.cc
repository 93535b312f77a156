#include "command_line.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "completions.h"
#include "dsv4/version.h"
#include "errors.h"
#include "flags.h"
#include "io.h"
#include "model.h"
#include "old_flags.h"
#include "options.h"
#include "other_commands.h"
#include "suggestion.h"
#include "welcome.h"

namespace dsv4::cli {

namespace {

GivenSampling GivenSamplingOf(const CLI::App& app) {
  const auto given = [&](const char* flag) { return app.count(flag) > 0; };
  return {.temperature = given("--temperature"),
          .top_k = given("--top-k"),
          .top_p = given("--top-p"),
          .min_p = given("--min-p"),
          .repeat_penalty = given("--repeat-penalty")};
}

// ---- Commands

void AddGenerate(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<GenerateOptions>();
  CLI::App* c = AddCommand(app, "generate", "Continue a prompt",
                           "dsv4 generate -p \"In the beginning\" -n 64 --temperature 0");
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddText(c, "-p,--prompt", "TEXT", "prompt (alternatives: --prompt-file, --token-ids, or piped stdin)",
          [o](const std::string& text) { o->prompt = text; });
  AddPath(c, "--prompt-file", &o->prompt_file, "file with the prompt (-: stdin)");
  AddPath(c, "--token-ids", &o->token_ids_file, "file with the token ids of the prompt, used unchanged (-: stdin)");
  AddInteger(c, "-n,--max-tokens", &o->max_tokens, -1, kMaxInt64,
             "maximum number of tokens to write (default 256; -1: until EOS or the end of the context)");
  AddSamplingFlags(c, &o->sampling, &o->stops);
  AddInteger(c, "--logprobs", &o->sampling.top_logprobs, 0, 1000,
             "with --json: print log-probabilities of each token and of the N most likely ones");
  AddPath(c, "--output-ids", &o->output_ids_file, "write the token ids of the output to this file");
  AddCountExperts(c, &o->model, &o->count_experts_file);
  c->add_flag("--ignore-eos", o->ignore_eos, "continue after EOS");
  AddPath(c, "--draft-log", &o->draft_log_file,
          "write proposed and accepted draft tokens to this file, one JSON line per step");
  c->add_flag("--no-bos", o->no_bos,
              "do not add BOS before the prompt (by default, added before a text that does not start with it)");
  c->add_flag("--json", o->json, "print one JSON object at the end instead of streaming text");
  c->final_callback([=] {
    const int sources = (o->prompt ? 1 : 0) + (o->prompt_file.empty() ? 0 : 1) + (o->token_ids_file.empty() ? 0 : 1);
    if (sources > 1)
      throw UsageError("generate takes only one of --prompt, --prompt-file and --token-ids; remove the others");
    if (o->sampling.top_logprobs >= 0 && !o->json) throw UsageError("--logprobs needs --json: add it");
    if (!o->draft_log_file.empty() && o->model.drafts.speculate == Speculate::kOff)
      throw UsageError("--draft-log needs drafts: add --speculate lookup, mtp, dspark or auto");
    CheckSampling(o->sampling);
    o->given_sampling = GivenSamplingOf(*c);
    *chosen = [o] { return RunGenerate(*o); };
  });
}

void AddChat(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<ChatOptions>();
  CLI::App* c = AddCommand(app, "chat", "Chat with the model in the terminal; /help lists the commands",
                           "dsv4 chat --no-thinking");
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddText(c, "--system", "TEXT", "system message", [o](const std::string& text) { o->system = text; });
  AddPath(c, "--tools", &o->tools_file, "JSON file with a list of tools in OpenAI form");
  AddDialect(c, &o->dialect);
  c->add_flag_callback(
      "--thinking", [o] { o->thinking = true; }, "let the model reason before it answers (default; /think changes it)");
  c->add_flag_callback(
      "--no-thinking", [o] { o->thinking = false; }, "let the model answer without reasoning");
  c->add_flag_callback(
      "--no-history", [o] { o->keep_history = false; }, "do not keep the typed lines for the next chat");
  AddChoice<ReasoningEffort>(
      c, "--effort", &o->effort,
      {{"low", ReasoningEffort::kLow}, {"high", ReasoningEffort::kHigh}, {"max", ReasoningEffort::kMax}},
      "reasoning effort");
  AddInteger(c, "-n,--max-tokens", &o->max_tokens, -1, kMaxInt64,
             "maximum number of tokens per reply (default -1: until EOS)");
  AddSamplingFlags(c, &o->sampling, &o->stops);
  c->final_callback([=] {
    CheckSampling(o->sampling);
    o->given_sampling = GivenSamplingOf(*c);
    *chosen = [o] { return RunChat(*o); };
  });
}

void AddLogits(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<LogitsOptions>();
  CLI::App* c = AddCommand(app, "logits", "Write the logits after every token to a safetensors file",
                           "dsv4 logits --token-ids ids.txt -o logits.safetensors");
  AddModelFlags(c, &o->model);
  AddPath(c, "--token-ids", &o->token_ids_file,
          "file with token ids, separated by white space or commas, or as a JSON array (-: stdin)");
  AddPath(c, "-o,--output", &o->output_file, "file to write: logits f32 [T, V]");
  AddText(c, "--decode-from", "K", "process the first K tokens as a prompt, the others one by one",
          [o](const std::string& text) {
            int64_t n = 0;
            if (!ParseWhole(text, &n) || n < 0)
              throw UsageError("--decode-from is '" + text + "'; accepted: a whole number from 0");
            o->decode_from = n;
          });
  c->add_flag("--json", o->json, "print a summary as JSON");
  c->final_callback([=] {
    if (o->token_ids_file.empty()) throw UsageError("logits needs token ids: add --token-ids F");
    if (o->output_file.empty()) throw UsageError("logits needs an output file: add -o OUT.safetensors");
    *chosen = [o] { return RunLogits(*o); };
  });
}

void AddPerplexity(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<PerplexityOptions>();
  CLI::App* c = AddCommand(app, "perplexity", "Measure how well the model predicts a text",
                           "dsv4 perplexity -f book.txt --ctx 1024");
  AddModelFlags(c, &o->model, ModelFlags::kWithoutContext);
  AddPath(c, "-f,--file", &o->text_file, "file with the text (-: stdin)");
  AddPath(c, "--token-ids", &o->token_ids_file, "file with the token ids of the text, used unchanged");
  AddInteger(
      c, "--ctx", &o->window, 2, kMaxInt64,
      "tokens per window (default 2048, at most the model's context). Windows do not overlap. Each starts with BOS "
      "and an empty context, so every token of the text is predicted once");
  c->add_flag("--no-bos", o->no_bos, "start windows without BOS; the first token of a window is then not predicted");
  c->add_flag("--json", o->json, "print the result as JSON");
  c->final_callback([=] {
    if (o->text_file.empty() == o->token_ids_file.empty())
      throw UsageError("perplexity needs one text: add -f TEXTFILE or --token-ids F");
    *chosen = [o] { return RunPerplexity(*o); };
  });
}

void AddTokenize(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<TokenizeOptions>();
  CLI::App* c = AddCommand(app, "tokenize", "Convert text on stdin to token ids", "echo -n \"Hello\" | dsv4 tokenize");
  AddModelDir(c, &o->model_dir);
  c->add_flag("--no-special", o->plain, "treat the text of added tokens, such as <think>, as ordinary text");
  c->add_flag("--jsonl", o->jsonl, "one JSON string per line in, one JSON array per line out");
  c->final_callback([=] { *chosen = [o] { return RunTokenize(*o); }; });
}

void AddDetokenize(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<TokenizeOptions>();
  CLI::App* c = AddCommand(app, "detokenize", "Convert token ids on stdin to text, byte for byte",
                           "echo 310 42 | dsv4 detokenize");
  AddModelDir(c, &o->model_dir);
  c->add_flag("--skip-special", o->skip_special, "omit special tokens (BOS, EOS, padding)");
  c->add_flag("--jsonl", o->jsonl, "one JSON array per line in, one JSON string per line out");
  c->final_callback([=] { *chosen = [o] { return RunDetokenize(*o); }; });
}

void AddEncode(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<ChatEncodeOptions>();
  CLI::App* c = AddCommand(
      app, "encode", "Convert a conversation in OpenAI form on stdin to the exact prompt text",
      R"(echo '{"messages": [{"role": "user", "content": "Hi"}], "thinking": true}' | dsv4 encode)");
  AddModelDir(c, &o->model_dir);
  AddDialect(c, &o->dialect);
  c->add_flag("--ids", o->ids, "print token ids as a JSON array instead of the text");
  AddSpecialTokens(c, &o->in_content, "official");
  c->add_flag("--as-served", o->as_served, "every turn has its header, as in the prompts of dsv4 serve");
  c->add_flag("--jsonl", o->jsonl, "one request per line in, one JSON value per line out");
  c->final_callback([=] { *chosen = [o] { return RunEncode(*o); }; });
}

void AddParse(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<ParseOptions>();
  CLI::App* c = AddCommand(app, "parse", "Convert the text of a completion on stdin to a message in JSON",
                           "echo -n 'The sum.</think>42' | dsv4 parse --thinking");
  c->add_flag("--thinking", o->thinking, "the text starts inside the reasoning");
  c->add_flag("--jsonl", o->jsonl, R"(lines {"completion": "...", "thinking": true} in, one message per line out)");
  c->final_callback([=] { *chosen = [o] { return RunParse(*o); }; });
}

void AddInspect(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<InspectOptions>();
  CLI::App* c = AddCommand(app, "inspect", "Describe a checkpoint and the memory that it needs",
                           "dsv4 inspect -m models/nano --plan");
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddSyntheticFlags(c, &o->model);
  c->add_flag("--plan", o->plan, "print the memory plan and the implementation of each op");
  c->add_flag("--json", o->json, "print everything as JSON");
  c->final_callback([=] {
    CheckSynthetic(o->model);
    *chosen = [o] { return RunInspect(*o); };
  });
}

void AddServe(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<ServeOptions>();
  CLI::App* c = AddCommand(app, "serve", "Serve OpenAI- and Anthropic-compatible HTTP",
                           "dsv4 serve --port 8000 --api-key-file keys.txt");
  AddServeFlags(c, o.get());
  c->final_callback([=] {
    CheckServeFlags(*o);
    *chosen = [o] { return RunServe(*o); };
  });
}

void AddCompletions(CLI::App* app, Command* chosen) {
  constexpr const char* kUse = "completions needs the name of a shell: bash, zsh, fish";
  const auto shell = std::make_shared<std::string>();
  CLI::App* c = AddCommand(app, "completions", "Print a script with which a shell completes commands and flags",
                           "source <(dsv4 completions bash)");
  c->add_option("shell", *shell, "bash, zsh or fish");
  c->final_callback([=] {
    const std::vector<std::string> names = {"bash", "zsh", "fish"};
    const auto found = std::find(names.begin(), names.end(), *shell);
    if (found == names.end()) throw UsageError(kUse);
    const std::string script = CompletionScript(*app, static_cast<Shell>(found - names.begin()));
    *chosen = [script] {
      Print(script);
      return kExitDone;
    };
  });
}

// ---- Errors

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The command or sub-command that was parsed last: "dsv4 bench decode".
const CLI::App* Innermost(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return command;
}
std::string PathOf(const CLI::App* command) {
  const CLI::App* parent = command->get_parent();
  return parent == nullptr ? command->get_name() : PathOf(parent) + " " + command->get_name();
}

std::vector<std::string> SubcommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(c->get_name());
  return names;
}

// The likely mistake if `word` is an argument of a command that takes none.
std::string MeantBy(const CLI::App& command, const std::string& word) {
  const std::string suggestion = Suggestion(word, SubcommandNames(command));
  if (!suggestion.empty()) return suggestion;
  std::error_code error;
  const bool folder = std::filesystem::is_directory(word, error) || command.get_name() == "serve" ||
                      word.find('/') != std::string::npos;
  if (folder && command.get_option_no_throw("--model") != nullptr) return "; a model's folder follows -m";
  if (command.get_option_no_throw("--prompt") != nullptr) return "; a prompt follows -p, in quotes";
  return "";
}

// "--seed: 1 required N missing"
std::string Complaint(const CLI::ParseError& error) {
  const std::string text = OneLine(error.what());
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr || !text.ends_with(" missing")) return text;
  return text.substr(0, text.find(':')) + " needs a value";
}

// Returns the advice for a command or flag of other programs that dsv4 does not have; "" for other words.
std::string OfOtherPrograms(const std::string& word) {
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), word) != names.end();
  };
  if (is({"pull", "download", "models", "list", "ls"}))
    return "; download models with hf, and give their folder with -m (docs/models.md)";
  if (is({"run", "cli"})) return "; did you mean chat?";
  if (is({"complete"})) return "; did you mean generate?";
  if (is({"convert", "quantize", "quantise"}))
    return "; published folders load without conversion (docs/checkpoints.md)";
  if (is({"-v"})) return "; did you mean --version?";
  return "";
}

[[noreturn]] void ThrowExtra(CLI::App& app) {
  const std::string extra = app.remaining(/*recurse=*/true).front();
  const CLI::App* command = Innermost(app);
  if (command == &app) {
    std::vector<std::string> names = SubcommandNames(app);
    for (const char* name : {"help", "--help", "--version"}) names.push_back(name);
    const std::string known = OfOtherPrograms(extra);
    throw UsageError((extra.starts_with("-") ? "unknown flag '" : "unknown command '") + OneLine(extra) + "'" +
                     (known.empty() ? Suggestion(extra, names) : known) + " (dsv4 --help lists the commands)");
  }
  const std::string see = " (see " + PathOf(command) + " --help)";
  if (!extra.starts_with("-"))
    throw UsageError("unexpected argument '" + OneLine(extra) + "'" + MeantBy(*command, extra) + see);
  std::vector<std::string> names;
  for (const CLI::Option* option : command->get_options()) {
    if (IsOld(*command, *option)) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  throw UsageError("unknown flag '" + OneLine(extra) + "'" + Suggestion(extra.substr(0, extra.find('=')), names) + see);
}

int PrintVersion() {
  const BuildInfo info = GetBuildInfo();
  Print("dsv4 " + info.version + "\ncommit: " + info.commit + "\ncompiler: " + info.compiler + "\nbuild type: " +
        info.build_type + "\ncpu: " + info.cpu_features + "\ncompiled for: " + info.compiled_features +
        (info.gpu_architectures.empty() ? ""
                                        : "\nGPU kernels for: " + info.gpu_architectures +
                                              " (sm_90a runs on H100 and H200; only sm_90a has been tested)") +
        "\n");
  return kExitDone;
}

// `dsv4` alone is wrong usage, but a user at a terminal needs more than an error.
int PrintWelcome() {
  Welcome welcome = {.machine = DescribeMachine(), .has_gpu_code = !GetBuildInfo().gpu_architectures.empty()};
  try {
    FindModelDir("");
    welcome.has_bundled_model = true;
  } catch (const RunError&) {
  }
  PrintError(WelcomeText(welcome, StderrColumns()));
  return kExitUsage;
}

void AddCommands(CLI::App* app, Command* chosen) {
  AddGenerate(app, chosen);
  AddChat(app, chosen);
  AddLogits(app, chosen);
  AddPerplexity(app, chosen);
  AddTokenize(app, chosen);
  AddDetokenize(app, chosen);
  AddEncode(app, chosen);
  AddParse(app, chosen);
  AddInspect(app, chosen);
  AddBench(app, chosen);
  AddSynthesize(app, chosen);
  AddServe(app, chosen);
  AddHealth(app, chosen);
  AddCompletions(app, chosen);
  AddMan(app, chosen);
  app->require_subcommand(0, 1);
  HideOldFlags(app);
}

// The words of argv in CLI11's order, which is reversed. `dsv4 help chat` becomes `dsv4 chat --help`.
std::vector<std::string> WordsOf(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  std::reverse(words.begin(), words.end());
  return words;
}

}  // namespace

std::function<int()> ParseCommandLine(int argc, char** argv) {
  Command chosen;
  CLI::App app("DeepSeek-V4 inference engine: generates text from a checkpoint on this machine.", "dsv4");
  app.footer(
      "Example:\n  dsv4 generate -p \"In the beginning\" -n 64\n\n"
      "'dsv4 COMMAND --help', or 'dsv4 help COMMAND', shows the flags of a command.");
  app.get_formatter()->column_width(34);
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  bool version = false;
  app.set_help_flag("-h,--help", "print this help");
  app.add_flag("-V,--version", version, "print version, commit, compiler and instruction sets");
  AddCommands(&app, &chosen);
  try {
    app.parse(WordsOf(argc, argv));
  } catch (const CLI::CallForHelp&) {
    const std::string help = app.help();
    return [help] {
      Print(help);
      return kExitDone;
    };
  } catch (const CLI::ExtrasError&) {
    ThrowExtra(app);
  } catch (const CLI::ParseError& error) {
    throw UsageError(Complaint(error) + "; see " + PathOf(Innermost(app)) + " --help");
  }
  if (version) return PrintVersion;
  if (!chosen && StderrIsTerminal()) return PrintWelcome;
  if (!chosen)
    throw UsageError("no command; for example: dsv4 generate -p \"In the beginning\" (dsv4 --help lists all)");
  NoteOldFlags(app);
  return chosen;
}

}  // namespace dsv4::cli
