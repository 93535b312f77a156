// Flags of `dsv4 bench`, its sub-commands, and `dsv4 synthesize`.
#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flags.h"

namespace dsv4::cli {

namespace {

using BenchMode = BenchOptions::Mode;
using BenchRef = std::shared_ptr<BenchOptions>;

// Parses a word of --shapes, "4096x4096".
std::pair<int64_t, int64_t> ParseShape(std::string_view word) {
  std::pair<int64_t, int64_t> shape;
  constexpr int64_t kMaxSide = 1 << 20;
  const size_t x = std::min(word.find('x'), word.size());
  const bool numbers = ParseWhole(word.substr(0, x), &shape.first) &&
                       ParseWhole(word.substr(std::min(x + 1, word.size())), &shape.second);
  if (!numbers || shape.first < 1 || shape.second < 128 || shape.first > kMaxSide || shape.second > kMaxSide ||
      shape.second % 128 != 0) {
    throw UsageError("--shapes contains '" + std::string(word) +
                     "'; accepted: rows x columns, with columns a multiple of 128, for example 4096x4096");
  }
  return shape;
}

// ---- Flags that several sub-commands have

void AddPrompts(CLI::App* c, const BenchRef& o, const std::string& usual) {
  AddCounts(c, "--prompts", &o->prompts, 1 << 20, "prompt lengths in tokens (default: " + usual + ")");
}

void AddContexts(CLI::App* c, const BenchRef& o, const std::string& usual) {
  AddCounts(c, "--contexts", &o->contexts, 1 << 20, "tokens in the cache when decode begins (default: " + usual + ")");
}

void AddBatches(CLI::App* c, const BenchRef& o, const std::string& usual) {
  AddCounts(c, "--batches", &o->batches, 1024, "sequences decoded together (default: " + usual + ")");
}

void AddTokens(CLI::App* c, const BenchRef& o, const std::string& usual) {
  AddInteger(c, "--tokens", &o->tokens, 1, 1 << 20, "tokens of a decode run (default: " + usual + ")");
}

void AddRepeat(CLI::App* c, const BenchRef& o) {
  AddInteger(c, "--repeat", &o->repeat, 1, 1000,
             "measured runs, after a warm-up run; the median is reported (default 5)");
}

void AddBudget(CLI::App* c, const BenchRef& o, const std::string& usual) {
  AddInteger(c, "--budget", &o->budget_s, 1, 1 << 20,
             "seconds per figure; after that, the finished runs count (default: " + usual + ")");
}

void AddDraws(CLI::App* c, const BenchRef& o) {
  AddNumber(c, "--temperature", &o->sampling.temperature, "sampling temperature; 0: greedy (default 1)");
  AddNumber(c, "--top-p", &o->sampling.top_p,
            "keep the smallest set of tokens whose probabilities sum to X (default 1: all)");
}

void AddJson(CLI::App* c, const BenchRef& o) { c->add_flag("--json", o->json, "print one JSON object per line"); }

constexpr const char* kUsualPrompts = "cpu 512,2048, cuda 512,2048,8192";
constexpr const char* kUsualContexts = "cpu 512,8192,131072, cuda 512,8192";
constexpr const char* kUsualBatches = "cpu 1,4,16, cuda 1,8";
constexpr const char* kUsualBudget = "cpu 20, cuda no limit";

// ---- Sub-commands

CLI::App* AddPart(CLI::App* bench, const char* name, const char* help, const std::string& example) {
  return AddCommand(bench, name, help,
                    "dsv4 bench " + std::string(name) + " " + example +
                        "\n\nMore flags of the model and the machine: dsv4 bench --help");
}

// Removes less important groups of flags from the help of a command, which still accepts them.
void ShortenHelp(CLI::App* c) {
  for (CLI::Option* option : c->get_options()) {
    for (const char* hidden : {"Models larger than the memory", "Precision and kernels", "Several ranks"}) {
      if (option->get_group() == hidden) option->group("");
    }
  }
}

// Adds the flags of the model and the final checks.
void Finish(CLI::App* c, const BenchRef& o, Command* chosen, ModelFlags flags) {
  AddModelFlags(c, &o->model, flags);
  AddSyntheticFlags(c, &o->model);
  AddJson(c, o);
  ShortenHelp(c);
  c->final_callback([=] {
    CheckSynthetic(o->model);
    const bool needs_cpu = o->mode == BenchMode::kOps || o->mode == BenchMode::kLinears;
    if (needs_cpu && !IsCpu(o->model.device)) {
      throw UsageError("bench " + c->get_name() + " measures the CPU: remove --device " + o->model.device +
                       ", or use --device cpu");
    }
    if (o->mode == BenchMode::kErrors && IsCpu(o->model.device))
      throw UsageError("bench errors compares kernels of a GPU: add --device cuda");
    if (o->mode == BenchMode::kDrafts && o->model.drafts.speculate == Speculate::kOff)
      throw UsageError("bench drafts needs a drafter: remove --speculate off");
    *chosen = [o] { return RunBench(*o); };
  });
}

BenchRef MakeOptions(BenchMode mode) {
  auto o = std::make_shared<BenchOptions>();
  o->mode = mode;
  return o;
}

// Adds the flags of sub-commands that measure decode steps, after the flags that choose the steps.
void FinishSteps(CLI::App* c, const BenchRef& o, Command* chosen) {
  AddTokens(c, o, "cpu 16, cuda 64");
  AddRepeat(c, o);
  AddBudget(c, o, kUsualBudget);
  AddDraws(c, o);
  AddCountExperts(c, &o->model, &o->count_experts_file);
  Finish(c, o, chosen, ModelFlags::kGenerate);
}

void AddDecodePart(CLI::App* bench, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kSteps);
  o->prompts.emplace(), o->ops = false;
  CLI::App* c = AddPart(bench, "decode", "Measure decode steps", "--batches 1,8 --contexts 512,8192");
  AddContexts(c, o, kUsualContexts);
  AddBatches(c, o, kUsualBatches);
  FinishSteps(c, o, chosen);
}

void AddPrefillPart(CLI::App* bench, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kSteps);
  o->contexts.emplace(), o->batches.emplace(), o->ops = false;
  CLI::App* c = AddPart(bench, "prefill", "Measure prompts", "--prompts 512,2048");
  AddPrompts(c, o, kUsualPrompts);
  AddRepeat(c, o);
  AddBudget(c, o, kUsualBudget);
  AddCountExperts(c, &o->model, &o->count_experts_file);
  Finish(c, o, chosen, ModelFlags::kGenerate);
}

void AddBatchPart(CLI::App* bench, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kBatches);
  o->prompts.emplace(), o->ops = false;
  CLI::App* c = AddPart(bench, "batch", "Compare decode steps of different batch sizes",
                        "--batches 1,4,16 --context 512");
  AddBatches(c, o, "cpu 1,2,4,8,16, cuda 1,2,4,8,16,32,64");
  AddText(c, "--context", "N", "tokens in the cache when decode begins (default 512)", [o](const std::string& text) {
    o->contexts = std::vector<int64_t>{ReadInteger("--context", text, 1, 1 << 20)};
  });
  FinishSteps(c, o, chosen);
}

void AddOpsPart(CLI::App* bench, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kOps);
  o->ops = true;
  CLI::App* c = AddPart(bench, "ops", "Measure the time of each op in prefill and decode, on the CPU",
                        "--synthetic flash --layers 2");
  AddPrompts(c, o, "512");
  AddContexts(c, o, "512,8192");
  AddBatches(c, o, "1,4");
  AddTokens(c, o, "16");
  AddRepeat(c, o);
  AddBudget(c, o, "20");
  AddDraws(c, o);
  Finish(c, o, chosen, ModelFlags::kGenerate);
}

void AddShapes(CLI::App* c, const BenchRef& o) {
  AddText(c, "--shapes", "NxK,...", "rows and columns of the linears, for example 4096x4096 (default: the model's)",
          [o](const std::string& text) {
            std::istringstream words(text);
            for (std::string word; std::getline(words, word, ',');) o->shapes.push_back(ParseShape(word));
          });
}

void AddLinearsPart(CLI::App* bench, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kLinears);
  CLI::App* c = AddPart(bench, "linears", "Measure linears in every weight format, on the CPU",
                        "--shapes 4096x4096 --tokens 1,512");
  AddShapes(c, o);
  AddCounts(c, "--tokens", &o->linear_tokens, 1 << 20, "tokens, which are rows of the input (default: 1,512,2048)");
  AddBudget(c, o, "0.3");
  Finish(c, o, chosen, ModelFlags::kPlain);
}

void AddDraftsPart(CLI::App* bench, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kDrafts);
  o->model.drafts.speculate = Speculate::kAuto;
  CLI::App* c = AddPart(bench, "drafts", "Measure decode steps with draft tokens of a given acceptance",
                        "--acceptance 70,80,0 --batches 1,8");
  AddCounts(c, "--acceptance", &o->acceptance, 100,
            "acceptance rates of draft tokens, in percent; run lengths follow the geometric distribution exactly "
            "(default 70, without --rows)",
            /*least=*/0);
  AddCounts(c, "--rows", &o->rows, kMaxDraftTokens + 1,
            "measure steps that verify drafts, with this number of rows per sequence");
  AddInteger(c, "--repeats", &o->repeats, 0, 100,
             "percentage of wrong draft tokens that repeat the previous token (default 0)");
  AddContexts(c, o, kUsualContexts);
  AddBatches(c, o, kUsualBatches);
  AddTokens(c, o, "cpu 16, cuda 256 of all sequences together, or 24 with --rows");
  AddRepeat(c, o);
  AddDraws(c, o);
  AddCountExperts(c, &o->model, &o->count_experts_file);
  Finish(c, o, chosen, ModelFlags::kGenerate);
}

void AddStartPart(CLI::App* bench, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kStart);
  CLI::App* c = AddPart(bench, "start", "Measure one start, by phases, from the process to the second token",
                        "-m models/nano");
  AddInteger(c, "--prompt-tokens", &o->start_prompt, 1, 1 << 20, "length of the prompt (default 512)");
  AddDraws(c, o);
  Finish(c, o, chosen, ModelFlags::kGenerate);
}

void AddErrorsPart(CLI::App* bench, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kErrors);
  CLI::App* c = AddPart(bench, "errors", "Measure the rounding errors of a GPU's prompt kernels",
                        "--device cuda --prompts 64,512");
  AddPrompts(c, o, "64,512,2048");
  Finish(c, o, chosen, ModelFlags::kPlain);
}

// ---- Old flags of `dsv4 bench` (old_flags.cc)

struct OldBenchFlags {
  SynthesizeOptions synthesize;
  std::string mode;  // the flag that selected the mode
};

// Selects a mode. Throws if another flag has selected another one.
void Select(const BenchRef& o, OldBenchFlags* old, BenchMode mode, const std::string& flag) {
  if (!old->mode.empty() && o->mode != mode)
    throw UsageError("bench takes only one of " + old->mode + " and " + flag + "; remove the other");
  o->mode = mode;
  old->mode = flag;
}

void AddOldFlags(CLI::App* c, const BenchRef& o, const std::shared_ptr<OldBenchFlags>& old) {
  const auto select = [=](BenchMode mode, const char* flag) { return [=] { Select(o, old.get(), mode, flag); }; };
  c->add_flag_callback("--errors", select(BenchMode::kErrors, "--errors"));
  c->add_flag_callback("--linears", select(BenchMode::kLinears, "--linears"));
  c->add_flag_callback("--first-token", select(BenchMode::kStart, "--first-token"));
  AddShapes(c, o);
  AddCounts(c, "--draft-rows", &o->rows, kMaxDraftTokens + 1, "");
  AddCounts(c, "--draft-right", &o->acceptance, 100, "", /*least=*/0);
  AddInteger(c, "--draft-repeats", &o->repeats, 0, 100, "");
  AddText(c, "--disk", kFolderType, "", [=](const std::string& text) {
    if (text.empty()) throw UsageError("--disk is empty; give a folder");
    old->synthesize.dir = text;
  });
  AddText(c, "--disk-overflow", kFolderType, "", [=](const std::string& text) {
    if (text.empty()) throw UsageError("--disk-overflow is empty; give a folder");
    old->synthesize.overflow = text;
  });
}

// Gives the options of the selected mode the values that the old flags meant.
void ApplyOldFlags(const BenchRef& o, OldBenchFlags* old) {
  if (o->rows || o->acceptance) Select(o, old, BenchMode::kDrafts, o->rows ? "--draft-rows" : "--draft-right");
  if (!old->synthesize.dir.empty()) old->mode = "--disk";
  if (!old->synthesize.overflow.empty() && old->synthesize.dir.empty())
    throw UsageError("--disk-overflow needs --disk DIR; the new form is 'dsv4 synthesize DIR --overflow DIR2'");
  if (!o->shapes.empty() && o->mode != BenchMode::kLinears)
    throw UsageError("--shapes needs --linears; the new form is 'dsv4 bench linears --shapes NxK'");
  if (o->mode == BenchMode::kDrafts && o->model.drafts.speculate == Speculate::kOff)
    throw UsageError(old->mode + " needs a drafter: add --speculate mtp, dspark or lookup");
  if (o->mode == BenchMode::kStart && o->prompts && !o->prompts->empty()) o->start_prompt = o->prompts->front();
  if (o->mode == BenchMode::kLinears && o->prompts) {
    o->linear_tokens = std::vector<int64_t>{1};
    o->linear_tokens->insert(o->linear_tokens->end(), o->prompts->begin(), o->prompts->end());
  }
}

void CheckBench(const BenchOptions& o, const std::string& old_mode) {
  CheckSynthetic(o.model);
  if (!IsCpu(o.model.device) && (o.mode == BenchMode::kLinears || o.ops.value_or(false))) {
    throw UsageError((o.mode == BenchMode::kLinears ? "--linears" : "--ops") +
                     std::string(" measures the CPU: remove it, or use --device cpu"));
  }
  if (IsCpu(o.model.device) && o.mode == BenchMode::kErrors)
    throw UsageError("--errors compares kernels of a GPU: add --device cuda");
  if (!o.count_experts_file.empty() && !old_mode.empty() && o.mode != BenchMode::kDrafts)
    throw UsageError("--count-experts needs steps that are measured: remove it, or remove " + old_mode);
}

// Throws if flags of `dsv4 bench` itself come before the sub-command.
void CheckNoFlags(const CLI::App& bench) {
  for (const CLI::Option* option : bench.get_options()) {
    if (option->count() == 0) continue;
    const std::string part = bench.get_subcommands().front()->get_name();
    throw UsageError(option->get_name() + " comes before " + part + ": write it after 'dsv4 bench " + part + "'");
  }
}

void AddBenchFlags(CLI::App* c, const BenchRef& o) {
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddSyntheticFlags(c, &o->model);
  AddPrompts(c, o, kUsualPrompts);
  AddContexts(c, o, kUsualContexts);
  AddBatches(c, o, kUsualBatches);
  AddTokens(c, o, "cpu 16, cuda 64");
  AddRepeat(c, o);
  AddBudget(c, o, kUsualBudget);
  c->add_flag_callback(
      "--ops", [o] { o->ops = true; }, "on the CPU: report the time of each op for every figure (default)");
  c->add_flag_callback(
      "--no-ops", [o] { o->ops = false; }, "report only figures of whole steps");
  AddCountExperts(c, &o->model, &o->count_experts_file);
  AddDraws(c, o);
  AddJson(c, o);
}

}  // namespace

void AddBench(CLI::App* app, Command* chosen) {
  const BenchRef o = MakeOptions(BenchMode::kSteps);
  const auto old = std::make_shared<OldBenchFlags>();
  CLI::App* c = AddCommand(app, "bench", "Measure prefill and decode; sub-commands measure parts of them",
                           "dsv4 bench --device cuda --synthetic flash --layers 20\n  dsv4 bench decode --batches 1,8");
  AddBenchFlags(c, o);
  AddOldFlags(c, o, old);
  AddDecodePart(c, chosen);
  AddPrefillPart(c, chosen);
  AddBatchPart(c, chosen);
  AddOpsPart(c, chosen);
  AddLinearsPart(c, chosen);
  AddDraftsPart(c, chosen);
  AddStartPart(c, chosen);
  AddErrorsPart(c, chosen);
  c->require_subcommand(0, 1);
  c->final_callback([=] {
    if (!c->get_subcommands().empty()) return CheckNoFlags(*c);
    ApplyOldFlags(o, old.get());
    CheckBench(*o, old->mode);
    if (old->synthesize.dir.empty()) {
      *chosen = [o] { return RunBench(*o); };
      return;
    }
    if (o->model.synthetic.shape.empty())
      throw UsageError("--disk writes synthetic weights: add --synthetic flash, pro or nano");
    old->synthesize.model = o->model;
    old->synthesize.json = o->json;
    *chosen = [old] { return RunSynthesize(old->synthesize); };
  });
}

void AddSynthesize(CLI::App* app, Command* chosen) {
  const auto o = std::make_shared<SynthesizeOptions>();
  CLI::App* c = AddCommand(app, "synthesize", "Write a checkpoint with random weights of a released shape",
                           "dsv4 synthesize /tmp/flash2 --synthetic flash --layers 2");
  c->add_option("dir", o->dir, "the new folder")->type_name(kFolderType);
  AddText(c, "--overflow", kFolderType, "second new folder, on another disk, for shards that do not fit on the first",
          [o](const std::string& text) {
            if (text.empty()) throw UsageError("--overflow is empty; give a folder");
            o->overflow = text;
          });
  c->add_flag("--json", o->json, "print one JSON object");
  AddModelFlags(c, &o->model, ModelFlags::kGenerate);
  AddSyntheticFlags(c, &o->model);
  ShortenHelp(c);
  c->final_callback([=] {
    CheckSynthetic(o->model);
    if (o->dir.empty()) throw UsageError("synthesize needs the name of a new folder: dsv4 synthesize DIR");
    if (o->model.synthetic.shape.empty())
      throw UsageError("synthesize needs a shape: add --synthetic flash, pro or nano");
    *chosen = [o] { return RunSynthesize(*o); };
  });
}

}  // namespace dsv4::cli
