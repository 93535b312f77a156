#include "command_line.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
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
#include "options.h"
#include "suggestion.h"

namespace dsv4::cli {

namespace {

// Sampling values that need no vocabulary are checked before a model is loaded.
void CheckSampling(const SamplingParams& s) {
  constexpr int64_t kAnyVocabulary = std::numeric_limits<TokenId>::max();
  MustBeUsable(ValidateSampling(s, kAnyVocabulary));
}

// ---- Commands

using Command = std::function<int()>;

CLI::App* AddCommand(CLI::App* app, const char* name, const char* help, const char* example) {
  CLI::App* command = app->add_subcommand(name, help)->group("Commands");
  command->footer(std::string("Example:\n  ") + example);
  return command;
}

void AddGenerate(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<GenerateOptions>();
  CLI::App* c = AddCommand(app, "generate", "Continue a prompt",
                           "dsv4 generate -p \"In the beginning\" -n 64 --temperature 0");
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddText(c, "-p,--prompt", "TEXT", "the prompt (else --prompt-file, --token-ids, or stdin when piped)",
          [o](const std::string& text) { o->prompt = text; });
  AddPath(c, "--prompt-file", &o->prompt_file, "a file with the prompt (-: stdin)");
  AddPath(c, "--token-ids", &o->token_ids_file, "a file with the prompt's token ids, taken as they are (-: stdin)");
  AddInteger(c, "-n,--max-tokens", &o->max_tokens, -1, kMaxInt64,
             "tokens to write (default 256; -1: until EOS or the end of the context)");
  AddSamplingFlags(c, &o->sampling, &o->stops);
  AddInteger(c, "--logprobs", &o->sampling.top_logprobs, 0, 1000,
             "with --json: log-probabilities of each token and of the N most likely ones");
  AddPath(c, "--output-ids", &o->output_ids_file, "write the token ids of the output to this file");
  AddCountExperts(c, &o->model, &o->count_experts_file);
  c->add_flag("--ignore-eos", o->ignore_eos, "go on after EOS");
  AddPath(c, "--draft-log", &o->draft_log_file, "write what was drafted and what was right, a JSON line a step");
  c->add_flag("--no-bos", o->no_bos,
              "do not put BOS before the prompt (text prompts get one unless they start with it)");
  c->add_flag("--json", o->json, "print one JSON object at the end instead of streaming text");
  c->final_callback([=] {
    const int sources = (o->prompt ? 1 : 0) + (o->prompt_file.empty() ? 0 : 1) + (o->token_ids_file.empty() ? 0 : 1);
    if (sources > 1) throw UsageError("generate takes one of --prompt, --prompt-file and --token-ids, not several");
    if (o->sampling.top_logprobs >= 0 && !o->json) throw UsageError("--logprobs needs --json");
    if (!o->draft_log_file.empty() && o->model.drafts.speculate == Speculate::kOff)
      throw UsageError("--draft-log tells of drafts; add --speculate lookup, mtp, dspark or auto");
    CheckSampling(o->sampling);
    *chosen = [o] { return RunGenerate(*o); };
  });
}

void AddChat(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<ChatOptions>();
  CLI::App* c = AddCommand(app, "chat", "Talk to the model; /help inside lists the commands",
                           "dsv4 chat --no-thinking");
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddText(c, "--system", "TEXT", "system message", [o](const std::string& text) { o->system = text; });
  AddPath(c, "--tools", &o->tools_file, "a JSON file with a list of tools in OpenAI form");
  AddDialect(c, &o->dialect);
  c->add_flag_callback(
      "--thinking", [o] { o->thinking = true; },
      "let the model reason before it answers (default; /think switches it)");
  c->add_flag_callback(
      "--no-thinking", [o] { o->thinking = false; }, "let it answer at once");
  c->add_flag_callback(
      "--no-history", [o] { o->keep_history = false; }, "keep nothing of what is typed for the next chat");
  AddChoice<ReasoningEffort>(
      c, "--effort", &o->effort,
      {{"low", ReasoningEffort::kLow}, {"high", ReasoningEffort::kHigh}, {"max", ReasoningEffort::kMax}},
      "reasoning effort");
  AddInteger(c, "-n,--max-tokens", &o->max_tokens, -1, kMaxInt64, "tokens per reply (default -1: until EOS)");
  AddSamplingFlags(c, &o->sampling, &o->stops);
  c->final_callback([=] {
    CheckSampling(o->sampling);
    *chosen = [o] { return RunChat(*o); };
  });
}

void AddLogits(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<LogitsOptions>();
  CLI::App* c = AddCommand(app, "logits", "Write the logits after every token to a safetensors file",
                           "dsv4 logits --token-ids ids.txt -o logits.safetensors");
  AddModelFlags(c, &o->model);
  AddPath(c, "--token-ids", &o->token_ids_file,
          "a file with token ids, separated by white space or commas, or as a JSON array (-: stdin)");
  AddPath(c, "-o,--output", &o->output_file, "the file to write: logits f32 [T, V]");
  AddText(c, "--decode-from", "K", "read the first K tokens as a prompt, the rest one by one",
          [o](const std::string& text) {
            int64_t n = 0;
            if (!ParseWhole(text, &n) || n < 0)
              throw UsageError("--decode-from is '" + text + "'; accepted: a whole number from 0");
            o->decode_from = n;
          });
  c->add_flag("--json", o->json, "print a summary as JSON");
  c->final_callback([=] {
    if (o->token_ids_file.empty()) throw UsageError("logits needs --token-ids F");
    if (o->output_file.empty()) throw UsageError("logits needs -o OUT.safetensors");
    *chosen = [o] { return RunLogits(*o); };
  });
}

void AddPerplexity(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<PerplexityOptions>();
  CLI::App* c = AddCommand(app, "perplexity", "How well the model predicts a text",
                           "dsv4 perplexity -f book.txt --ctx 1024");
  AddModelFlags(c, &o->model, ModelFlags::kWithoutContext);
  AddPath(c, "-f,--file", &o->text_file, "the text (-: stdin)");
  AddPath(c, "--token-ids", &o->token_ids_file, "its token ids instead, taken as they are");
  AddInteger(c, "--ctx", &o->window, 2, kMaxInt64,
             "tokens per window, at most the model's context (default 2048, or that); windows do not overlap, each "
             "starts with BOS and an empty context, and every token of the text is predicted once");
  c->add_flag("--no-bos", o->no_bos, "windows without BOS: the first token of each is then not predicted");
  c->add_flag("--json", o->json, "print the result as JSON");
  c->final_callback([=] {
    if (o->text_file.empty() == o->token_ids_file.empty())
      throw UsageError("perplexity needs either -f TEXTFILE or --token-ids F");
    *chosen = [o] { return RunPerplexity(*o); };
  });
}

void AddTokenize(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<TokenizeOptions>();
  CLI::App* c = AddCommand(app, "tokenize", "Text on stdin to token ids", "echo -n \"Hello\" | dsv4 tokenize");
  AddModelDir(c, &o->model_dir);
  c->add_flag("--no-special", o->plain, "read spellings of added tokens, such as <think>, as ordinary text");
  c->add_flag("--jsonl", o->jsonl, "one JSON string per line in, one JSON array per line out");
  c->final_callback([=] { *chosen = [o] { return RunTokenize(*o); }; });
}

void AddDetokenize(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<TokenizeOptions>();
  CLI::App* c = AddCommand(app, "detokenize", "Token ids on stdin to text, byte for byte",
                           "echo 310 42 | dsv4 detokenize");
  AddModelDir(c, &o->model_dir);
  c->add_flag("--skip-special", o->skip_special, "leave out special tokens (BOS, EOS, padding)");
  c->add_flag("--jsonl", o->jsonl, "one JSON array per line in, one JSON string per line out");
  c->final_callback([=] { *chosen = [o] { return RunDetokenize(*o); }; });
}

void AddEncode(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<ChatEncodeOptions>();
  CLI::App* c = AddCommand(
      app, "encode", "A conversation in OpenAI form on stdin to the exact prompt text",
      R"(echo '{"messages": [{"role": "user", "content": "Hi"}], "thinking": true}' | dsv4 encode)");
  AddModelDir(c, &o->model_dir);
  AddDialect(c, &o->dialect);
  c->add_flag("--ids", o->ids, "the prompt's token ids, as a JSON array, instead of its text");
  AddSpecialTokens(c, &o->in_content, "official");
  c->add_flag("--jsonl", o->jsonl, "one request per line in, one JSON value per line out");
  c->final_callback([=] { *chosen = [o] { return RunEncode(*o); }; });
}

void AddParse(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<ParseOptions>();
  CLI::App* c = AddCommand(app, "parse", "A completion's text on stdin to a message in JSON",
                           "echo -n 'The sum.</think>42' | dsv4 parse --thinking");
  c->add_flag("--thinking", o->thinking, "the text starts inside the reasoning");
  c->add_flag("--jsonl", o->jsonl, R"(lines {"completion": "...", "thinking": true} in, one message per line out)");
  c->final_callback([=] { *chosen = [o] { return RunParse(*o); }; });
}

void AddInspect(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<InspectOptions>();
  CLI::App* c = AddCommand(app, "inspect", "What a checkpoint holds and what running it takes",
                           "dsv4 inspect -m models/nano --plan");
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddSyntheticFlags(c, &o->model);
  c->add_flag("--plan", o->plan, "show the memory plan and the implementation of each op");
  c->add_flag("--json", o->json, "print everything as JSON");
  c->final_callback([=] {
    CheckSynthetic(o->model);
    *chosen = [o] { return RunInspect(*o); };
  });
}

// A word of --shapes, "4096x4096".
std::pair<int64_t, int64_t> ParseShape(std::string_view word) {
  std::pair<int64_t, int64_t> shape;
  constexpr int64_t kMost = 1 << 20;
  const size_t x = std::min(word.find('x'), word.size());
  const bool numbers = ParseWhole(word.substr(0, x), &shape.first) &&
                       ParseWhole(word.substr(std::min(x + 1, word.size())), &shape.second);
  if (!numbers || shape.first < 1 || shape.second < 128 || shape.first > kMost || shape.second > kMost ||
      shape.second % 128 != 0) {
    throw UsageError("--shapes holds '" + std::string(word) +
                     "'; accepted: rows x columns, the columns a multiple of 128, for example 4096x4096");
  }
  return shape;
}

void CheckBench(const BenchOptions& o) {
  CheckSynthetic(o.model);
  if (!o.disk.empty() && o.model.synthetic.shape.empty())
    throw UsageError("--disk writes synthetic weights; add --synthetic flash");
  if (!o.disk_overflow.empty() && o.disk.empty())
    throw UsageError("--disk-overflow takes what the disk of --disk has no room for; add --disk DIR");
  if (!IsCpu(o.model.device) && (o.linears || o.ops.value_or(false))) {
    throw UsageError("--ops and --linears measure the CPU; add --device cpu");
  }
  if ((o.draft_rows || o.draft_right) && o.model.drafts.speculate == Speculate::kOff)
    throw UsageError("--draft-rows and --draft-right measure drafts; add --speculate mtp, dspark or lookup");
  if (!o.shapes.empty() && !o.linears) throw UsageError("--shapes are those of --linears; add it");
  if (o.first_token && o.linears) throw UsageError("bench takes one of --first-token and --linears, not both");
  if (!o.count_experts_file.empty() && (o.errors || o.first_token || o.linears || !o.disk.empty())) {
    throw UsageError(
        "--count-experts counts what steps and prompts choose; --errors, --first-token, --linears and --disk measure "
        "none of them");
  }
}

// What is measured instead of steps.
void AddOtherBenches(CLI::App* c, const std::shared_ptr<BenchOptions>& o) {
  c->add_flag("--errors", o->errors,
              "on a GPU: instead of times the error of each way to compute a prompt of --prompts tokens, against "
              "float32 inputs");
  c->add_flag("--linears", o->linears,
              "measure linears of the model's shapes in every weight format instead, for one token and for the "
              "--prompts (CPU)");
  AddText(c, "--shapes", "NxK,...", "with --linears: rows and columns, for example 4096x4096, instead of the model's",
          [o](const std::string& text) {
            std::istringstream words(text);
            for (std::string word; std::getline(words, word, ',');) o->shapes.push_back(ParseShape(word));
          });
  AddCounts(c, "--draft-rows", &o->draft_rows, kMaxDraftTokens + 1,
            "with --speculate: instead, steps that verify drafts, by rows of one sequence in them");
  AddCounts(c, "--draft-right", &o->draft_right, 100,
            "with --speculate: instead, decoding with drafts whose tokens are right so often, in percent, at the price "
            "of the drafter's own; runs of right ones are as long as chance makes them, each length as often as is to "
            "be expected",
            /*least=*/0);
  AddInteger(c, "--draft-repeats", &o->draft_repeats, 0, 100,
             "of tokens that are not right so many percent like the one in front (default 0)");
  c->add_flag("--first-token", o->first_token,
              "measure one start instead: from the start of the process to the first token, by phases (prompt: the "
              "first of --prompts)");
  AddText(c, "--disk", kFolderType,
          "with --synthetic: measure nothing, write the weights as a checkpoint into this new folder",
          [o](const std::string& text) {
            if (text.empty()) throw UsageError("--disk needs the name of a folder");
            o->disk = text;
          });
  AddText(c, "--disk-overflow", kFolderType,
          "with --disk: shards that its disk has no room for go to this new folder on another one, with links to them",
          [o](const std::string& text) {
            if (text.empty()) throw UsageError("--disk-overflow needs the name of a folder");
            o->disk_overflow = text;
          });
}

void AddBench(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<BenchOptions>();
  CLI::App* c = AddCommand(app, "bench", "Prefill and decode speed, as a share of what the memory's rate allows",
                           "dsv4 bench --device cuda --synthetic flash --layers 20\n  dsv4 bench --device cpu "
                           "--synthetic flash --layers 2 --threads 2");
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddSyntheticFlags(c, &o->model);
  AddCounts(c, "--prompts", &o->prompts, 1 << 20,
            "prompt lengths of the prefill part (default: cpu 512,2048, cuda 512,2048,8192)");
  AddCounts(c, "--contexts", &o->contexts, 1 << 20,
            "tokens in the cache when decode begins (default: cpu 512,8192,131072, cuda 512,8192)");
  AddCounts(c, "--batches", &o->batches, 1024, "sequences decoded together (default: cpu 1,4,16, cuda 1,8)");
  AddInteger(c, "--tokens", &o->tokens, 1, 1 << 20,
             "tokens of a decode run (default: cpu 16, cuda 64, with --draft-rows 24, with --draft-right 256 of all "
             "sequences together)");
  AddInteger(c, "--repeat", &o->repeat, 1, 1000, "runs that count; the median is reported (default 5)");
  AddInteger(c, "--budget", &o->budget_s, 1, 1 << 20,
             "seconds for one figure, after which it makes do with the runs it has (default: cpu 20, cuda no limit)");
  c->add_flag_callback(
      "--ops", [o] { o->ops = true; }, "on the CPU: behind every figure the time of each op (default)");
  c->add_flag_callback(
      "--no-ops", [o] { o->ops = false; }, "figures of whole steps only");
  AddCountExperts(c, &o->model, &o->count_experts_file);
  AddNumber(c, "--temperature", &o->sampling.temperature, "0: greedy (default 1)");
  AddNumber(c, "--top-p", &o->sampling.top_p, "keep the smallest set that sums to X (default 1: all)");
  AddOtherBenches(c, o);
  c->add_flag("--json", o->json, "one JSON object per line");
  c->final_callback([=] {
    CheckBench(*o);
    *chosen = [o] { return RunBench(*o); };
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
  constexpr const char* kUse = "completions needs the name of a shell; accepted: bash, zsh, fish";
  const auto shell = std::make_shared<std::string>();
  CLI::App* c = AddCommand(app, "completions", "What a shell reads to complete commands and flags",
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

// What somebody meant who wrote a word where a command takes none.
std::string MeantBy(const CLI::App& command, const std::string& word) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(word, error) || command.get_name() == "serve";
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

[[noreturn]] void ThrowExtra(CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  const std::vector<CLI::App*> commands = app.get_subcommands();
  const std::string& extra = extras.front();
  if (commands.empty()) {
    std::vector<std::string> names;
    for (const CLI::App* c : app.get_subcommands({})) names.push_back(c->get_name());
    for (const char* name : {"help", "--help", "--version"}) names.push_back(name);
    throw UsageError((extra.starts_with("-") ? "unknown flag '" : "unknown command '") + OneLine(extra) + "'" +
                     Suggestion(extra, names) + " (dsv4 --help lists the commands)");
  }
  const std::string command = "dsv4 " + commands.front()->get_name();
  if (!extra.starts_with("-")) {
    throw UsageError("unexpected argument '" + OneLine(extra) + "'" + MeantBy(*commands.front(), extra) + " (see " +
                     command + " --help)");
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : commands.front()->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  throw UsageError("unknown flag '" + OneLine(extra) + "'" + Suggestion(extra.substr(0, extra.find('=')), names) +
                   " (see " + command + " --help)");
}

int PrintVersion() {
  const BuildInfo info = GetBuildInfo();
  Print("dsv4 " + info.version + "\ncommit: " + info.commit + "\ncompiler: " + info.compiler + "\nbuild type: " +
        info.build_type + "\ncpu: " + info.cpu_features + "\ncompiled for: " + info.compiled_features +
        (info.gpu_architectures.empty() ? ""
                                        : "\nGPU kernels for: " + info.gpu_architectures +
                                              " (sm_90a runs on H100 and H200; others are compiled, never executed)") +
        "\n");
  return kExitDone;
}

}  // namespace

std::function<int()> ParseCommandLine(int argc, char** argv) {
  Command chosen;
  CLI::App app("DeepSeek-V4 inference engine: text from a checkpoint, on this machine.", "dsv4");
  app.footer(
      "Example:\n  dsv4 generate -p \"In the beginning\" -n 64\n\n"
      "'dsv4 COMMAND --help', or 'dsv4 help COMMAND', tells more.");
  app.get_formatter()->column_width(34);
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  bool version = false;
  app.set_help_flag("-h,--help", "print this and end");
  app.add_flag("-V,--version", version, "print version, commit, compiler and instruction sets");
  AddGenerate(&app, &chosen);
  AddChat(&app, &chosen);
  AddLogits(&app, &chosen);
  AddPerplexity(&app, &chosen);
  AddTokenize(&app, &chosen);
  AddDetokenize(&app, &chosen);
  AddEncode(&app, &chosen);
  AddParse(&app, &chosen);
  AddInspect(&app, &chosen);
  AddBench(&app, &chosen);
  AddServe(&app, &chosen);
  AddCompletions(&app, &chosen);
  app.require_subcommand(0, 1);
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && words.front() == "help") {  // `dsv4 help chat` is `dsv4 chat --help`
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    const std::string help = app.help();
    return [help] {
      Print(help);
      return kExitDone;
    };
  } catch (const CLI::ExtrasError&) {
    ThrowExtra(app);
  } catch (const CLI::ParseError& error) {
    const std::vector<CLI::App*> commands = app.get_subcommands();
    throw UsageError(Complaint(error) + "; see dsv4 " + (commands.empty() ? "" : commands.front()->get_name() + " ") +
                     "--help");
  }
  if (version) return PrintVersion;
  if (!chosen)
    throw UsageError("no command; for example: dsv4 generate -p \"In the beginning\" (dsv4 --help lists all)");
  return chosen;
}

}  // namespace dsv4::cli
