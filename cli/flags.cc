#include "flags.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <sstream>

#include "old_flags.h"

namespace dsv4::cli {

std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  if (option.get_type_name() != kChoiceType) return {};
  const std::string help = option.get_description();
  std::istringstream list(help.substr(help.rfind(": ") + 2));
  std::vector<std::string> names;
  for (std::string name; std::getline(list >> std::ws, name, ',');) names.push_back(name);
  return names;
}

CLI::App* AddCommand(CLI::App* app, const char* name, const char* help, const std::string& example) {
  CLI::App* command = app->add_subcommand(name, help)->group("Commands");
  command->footer("Example:\n  " + example);
  return command;
}

CLI::Option* AddText(CLI::App* app, const std::string& flags, const std::string& type, const std::string& help,
                     std::function<void(const std::string&)> store) {
  for (const std::string& old : OldNamesOf(*app, LongName(flags)))
    app->add_option_function<std::string>(old, store)->type_name(type)->take_last();
  return app->add_option_function<std::string>(flags, std::move(store), help)->type_name(type)->take_last();
}

void AddTexts(CLI::App* app, const std::string& flags, const std::string& type, const std::string& help,
              std::function<void(const std::string&)> store) {
  const auto store_all = [store = std::move(store)](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) store(text);
  };
  app->add_option_function<std::vector<std::string>>(flags, store_all, help)
      ->type_name(type)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
}

bool IsUsableKey(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

int64_t ReadInteger(const std::string& flag, const std::string& text, int64_t low, int64_t high) {
  int64_t n = 0;
  if (!ParseWhole(text, &n) || n < low || n > high) {
    throw UsageError(flag + " is '" + text + "'; accepted: a whole number " +
                     (high == kMaxInt64 ? "from " + std::to_string(low)
                                        : "from " + std::to_string(low) + " to " + std::to_string(high)));
  }
  return n;
}

std::string LongName(const std::string& flags) { return flags.substr(flags.find("--")); }

void AddNumber(CLI::App* app, const std::string& flags, float* value, const std::string& help) {
  AddText(app, flags, "X", help, [=](const std::string& text) {
    if (!ParseWhole(text, value)) throw UsageError(LongName(flags) + " is '" + text + "'; accepted: a number");
  });
}

void AddPath(CLI::App* app, const std::string& flags, std::string* value, const std::string& help) {
  AddText(app, flags, kFileType, help, [=](const std::string& text) {
    if (text.empty()) throw UsageError(LongName(flags) + " is empty; give a file name");
    *value = text;
  });
}

void AddBytes(CLI::App* app, const std::string& flags, int64_t* value, const std::string& help) {
  AddText(app, flags, "BYTES", help, [=](const std::string& text) {
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    std::string unit = text.substr(digits);
    std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
    if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
    const std::vector<std::string> units = {"", "k", "m", "g", "t"};
    const auto power = std::find(units.begin(), units.end(), unit) - units.begin();
    int64_t n = 0;
    if (!ParseWhole(std::string_view(text).substr(0, digits), &n) || power == 5 ||
        n > kMaxMemoryBytes >> (10 * power)) {
      throw UsageError(LongName(flags) + " is '" + text + "'; accepted: a number of bytes, or 512MiB, 2GiB, up to " +
                       std::to_string(kMaxMemoryBytes >> 40) + "TiB");
    }
    *value = n << (10 * power);
  });
}

void AddCounts(CLI::App* app, const std::string& names, std::optional<std::vector<int64_t>>* counts, int64_t largest,
               const std::string& help, int64_t least) {
  AddText(app, names, "N,N,...", help, [=](const std::string& text) {
    counts->emplace();
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
      int64_t value = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      if (error != std::errc() || end != word.data() + word.size() || value < least || value > largest) {
        throw UsageError(names + " contains '" + word + "'; accepted: numbers from " + std::to_string(least) + " to " +
                         std::to_string(largest) + ", separated by commas");
      }
      (*counts)->push_back(value);
    }
  });
}

void AddModelDir(CLI::App* app, std::string* dir) {
  AddText(app, "-m,--model", kFolderType, "model folder (default: the bundled nano model)",
          [=](const std::string& text) {
            if (text.empty()) throw UsageError("--model is empty; give a folder");
            *dir = text;
          });
}

namespace {

void AddDraftFlags(CLI::App* app, ModelOptions* o) {
  const FlagGroup group(app, "Drafts");
  std::vector<std::pair<std::string, Speculate>> choices;
  for (size_t i = 0; i < std::size(kSpeculateNames); ++i) {
    choices.emplace_back(kSpeculateNames[i], static_cast<Speculate>(i));
  }
  const std::string usual(kSpeculateNames[static_cast<size_t>(o->drafts.speculate)]);
  AddChoice<Speculate>(
      app, "--speculate", &o->drafts.speculate, choices,
      "drafter that guesses tokens, which one step verifies; the text stays the same (default " + usual + ")");
  AddInteger(app, "--draft-tokens", &o->drafts.tokens, 1, kMaxDraftTokens,
             "maximum number of tokens per draft (default: the drafter's own)");
  AddText(app, "--draft-threshold", "X",
          "end a draft before the first token whose expected acceptance is below X, 0 to 1 (default: measured times "
          "decide)",
          [=](const std::string& text) {
            if (!ParseWhole(text, &o->drafts.threshold) || !(o->drafts.threshold >= 0 && o->drafts.threshold <= 1))
              throw UsageError("--draft-threshold is '" + text + "'; accepted: a number from 0 to 1");
          });
}

void AddDevice(CLI::App* app, ModelOptions* o) {
  AddText(app, "--device", "NAME",
          "device to run on: cpu, cuda (the first GPU), cuda:N (default cpu); several ranks: cuda:0,1, cuda:0-3, "
          "cuda:0*2, cpu*N",
          [=](const std::string& text) {
            const auto is_number = [&](size_t from) {
              return text.size() > from && text.find_first_not_of("0123456789", from) == std::string::npos;
            };
            const bool gpus = text.starts_with("cuda:") && text.size() > 5 &&
                              text.find_first_not_of("0123456789,-*", 5) == std::string::npos;
            if (text != "cpu" && text != "cuda" && !gpus && !(text.starts_with("cpu*") && is_number(4))) {
              throw UsageError("--device is '" + text +
                               "'; accepted: cpu, cuda, cuda:N with the number of a GPU; for 2, 4 or 8 ranks cpu*N, "
                               "cuda:0,1, cuda:0-3 or cuda:0*2");
            }
            o->device = text;
          });
}

void AddMemoryFlags(CLI::App* app, ModelOptions* o) {
  const FlagGroup group(app, "Models larger than the memory");
  AddBytes(app, "--gpu-memory", &o->offload.gpu_memory,
           "limit for the memory used on each GPU; experts that do not fit stay in host memory (default 0: no limit)");
  AddBytes(
      app, "--host-memory", &o->offload.host_memory,
      "limit for weights in host memory: on a GPU the experts that do not fit, on a CPU the weights that loading "
      "reads into memory (the system may keep more pages of the files); the rest is read from the disk when needed "
      "(default 0: the free memory)");
  AddInteger(app, "--expert-slots", &o->offload.expert_slots, 1, kMaxInt64,
             "maximum number of experts per layer in GPU memory; the most used ones are kept there (default: all that "
             "fit)");
  AddChoice<ExpertCompute>(
      app, "--expert-compute", &o->offload.expert_compute,
      {{"gpu", ExpertCompute::kGpu}, {"cpu", ExpertCompute::kCpu}, {"auto", ExpertCompute::kAuto}},
      "processor that computes the experts in host memory in decode steps of one GPU: the GPU, "
      "which reads them over PCIe; the CPU; or both, by measured rates. The CPU rounds differently, "
      "so results then depend on which experts are in host memory (default gpu)");
  AddBytes(app, "--kv-room", &o->offload.kv_room,
           "memory on each GPU that experts leave free for KV if not all fit (default 0: 2GiB, but at most a sixteenth "
           "of the GPU, and at least one sequence of --ctx)");
  AddPath(app, "--expert-counts", &o->offload.expert_counts,
          "file of --count-experts; the experts with the lowest counts move to host memory first");
}

void AddNumberFormats(CLI::App* app, ModelOptions* o) {
  const FlagGroup group(app, "Precision and kernels");
  AddChoice<KvDtype>(app, "--kv-dtype", &o->kv_dtype,
                     {{"fp8", KvDtype::kFp8}, {"bf16", KvDtype::kBf16}, {"f32", KvDtype::kF32}},
                     "format of cached KV rows (default fp8, as in training)");
  AddChoice<IndexDtype>(app, "--index-dtype", &o->index_dtype,
                        {{"fp4", IndexDtype::kFp4}, {"bf16", IndexDtype::kBf16}, {"f32", IndexDtype::kF32}},
                        "format of index queries and keys (default fp4, as in training)");
  AddChoice<ActivationDtype>(app, "--activation-dtype", &o->activation_dtype,
                             {{"native", ActivationDtype::kNative},
                              {"f32", ActivationDtype::kF32},
                              {"fp8", ActivationDtype::kFp8},
                              {"nvfp4", ActivationDtype::kNvfp4},
                              {"int24", ActivationDtype::kInt24},
                              {"int16", ActivationDtype::kInt16},
                              {"int8", ActivationDtype::kInt8}},
                             "rounding of the inputs of quantised linears (default native)");
  AddChoice<AmxUse>(app, "--amx", &o->amx,
                    {{"off", AmxUse::kOff}, {"prefill", AmxUse::kPrefill}, {"always", AmxUse::kAlways}},
                    "use a CPU's AMX tiles for matrix products: in steps of at least 8 tokens, so that the bits of a "
                    "row depend on the size of its step, or always (default off)");
  AddChoice<PromptInputs>(
      app, "--prompt-inputs", &o->prompt_inputs,
      {{"auto", PromptInputs::kByLength}, {"one", PromptInputs::kOne}, {"two", PromptInputs::kTwo}},
      "on a GPU: BF16 or FP16 terms per input of a matrix product in prompts (default auto: by the length of the "
      "prompt)");
  AddChoice<bool>(app, "--expert-tiles", &o->tight_experts, {{"auto", true}, {"wide", false}},
                  "on a GPU: store experts in 4.125 bits per weight if their scales allow it, or always in 4.5; the "
                  "results are the same (default auto)");
  app->add_flag(
      "--batch-invariant", o->batch_invariant,
      "on a GPU, with several ranks and with --rank-invariant: compute prompts of every length like decode steps, with "
      "the same bits (slower prefill)");
  app->add_flag("--reference-ops", o->reference_ops,
                "run the plain reference implementation of every op (slow; for checking)");
}

void AddRankFlags(CLI::App* app, ModelOptions* o) {
  const FlagGroup group(app, "Several ranks");
  AddChoice<bool>(app, "--collectives", &o->ranks.collectives_by_events, {{"auto", false}, {"events", true}},
                  "how GPUs exchange data: auto writes directly to the memory of the other GPUs; events is slower and "
                  "works under profilers (default auto)");
  AddNumber(app, "--collective-timeout", &o->ranks.collective_timeout_s,
            "seconds that a GPU waits for another before it fails; 0: no limit (default 10)");
  app->add_flag("--rank-invariant", o->ranks.invariant,
                "give the same bits on 1, 2, 4 and 8 ranks: each rank computes slices of fixed width (slower)");
  app->add_flag("--check-ranks", o->ranks.check, "compare the results of the ranks after every call (slow)");
}

}  // namespace

void AddModelFlags(CLI::App* app, ModelOptions* o, ModelFlags flags) {
  const FlagGroup group(app, "Model and machine");
  AddModelDir(app, &o->model_dir);
  AddDevice(app, o);
  AddInteger(app, "--threads", &o->num_threads, 0, 1024, "worker threads (default 0: one per usable core)");
  AddChoice<Pinning>(app, "--pin", &o->pinning,
                     {{"auto", Pinning::kAuto}, {"on", Pinning::kOn}, {"off", Pinning::kOff}},
                     "pin each CPU thread to one core (default auto: on machines with several memory nodes)");
  AddInteger(app, "--prefill-chunk", &o->prefill_chunk, 1, 1 << 20,
             "prompt tokens per pass through the model (default: cpu 512, cuda 4096)");
  if (flags != ModelFlags::kWithoutContext) {
    AddInteger(app, "--ctx", &o->max_context, 1, kMaxInt64,
               "context limit in tokens (default and maximum: the model's own)");
  }
  AddMemoryFlags(app, o);
  AddNumberFormats(app, o);
  AddRankFlags(app, o);
  if (flags == ModelFlags::kGenerate) AddDraftFlags(app, o);
}

void AddSyntheticFlags(CLI::App* c, ModelOptions* model) {
  const FlagGroup group(c, "Synthetic weights");
  AddChoice<std::string>(c, "--synthetic", &model->synthetic.shape,
                         {{"flash", "flash"}, {"pro", "pro"}, {"nano", "nano"}},
                         "random weights of a released shape instead of a checkpoint");
  AddInteger(c, "--layers", &model->synthetic.num_layers, 1, 1024, "use only the first N layers (default: all)");
  c->add_flag("--fp8-dense", model->synthetic.fp8_dense,
              "attention, shared expert and head in FP8, compressors in BF16 (default: all in NVFP4)");
  using E = SyntheticExperts;
  AddChoice<E>(c, "--synthetic-experts", &model->synthetic.experts,
               {{"nvfp4", E::kNvfp4}, {"cast", E::kNvfp4Cast}, {"mxfp4", E::kMxfp4}},
               "format of the routed experts: NVFP4, NVFP4 cast from MXFP4, or MXFP4 (default nvfp4)");
  AddChoice<bool>(c, "--routing", &model->synthetic.skewed_routing, {{"uniform", false}, {"zipf", true}},
                  "how often experts are chosen: all equally often, or a few of them most of the time (default "
                  "uniform)");
}

void CheckSynthetic(const ModelOptions& model) {
  const SyntheticModel& s = model.synthetic;
  const bool of_experts = s.experts != SyntheticExperts::kNvfp4 || s.skewed_routing;
  if (s.shape.empty() && (s.num_layers != 0 || s.fp8_dense || of_experts)) {
    throw UsageError(
        "--layers, --fp8-dense, --synthetic-experts and --routing are only for synthetic weights: add --synthetic "
        "flash, or remove them");
  }
}

void AddCountExperts(CLI::App* app, ModelOptions* o, std::string* path) {
  const FlagGroup group(app, "Models larger than the memory");
  AddText(app, "--count-experts", kFileType,
          "write how often each expert was chosen to this file, for --expert-counts; if that names the same file, add "
          "to its counts",
          [=](const std::string& text) {
            if (text.empty()) throw UsageError("--count-experts is empty; give a file name");
            *path = text;
            o->count_experts = true;
          });
}

void CheckSampling(const SamplingParams& s) {
  constexpr int64_t kAnyVocabulary = std::numeric_limits<TokenId>::max();
  MustBeUsable(ValidateSampling(s, kAnyVocabulary));
}

void AddSamplingFlags(CLI::App* app, SamplingParams* s, StopOptions* stops) {
  const FlagGroup group(app, "Sampling and stops");
  AddNumber(app, "--temperature", &s->temperature, "sampling temperature; 0: greedy (default: the model's, else 1)");
  AddInteger(app, "--top-k", &s->top_k, 0, kMaxInt64,
             "keep the N most likely tokens; 0: all (default: the model's, else 0)");
  AddNumber(app, "--top-p", &s->top_p,
            "keep the smallest set of tokens whose probabilities sum to X; 1: all (default: the model's, else 1)");
  AddNumber(app, "--min-p", &s->min_p,
            "drop tokens that are less likely than X times the most likely one (default: the model's, else 0)");
  AddNumber(app, "--repeat-penalty", &s->repeat_penalty,
            "above 1: make tokens of the prompt and the output less likely (default: the model's, else 1)");
  AddNumber(app, "--presence-penalty", &s->presence_penalty,
            "-2 to 2, subtracted once from the logit of a token in the output (default 0)");
  AddNumber(app, "--frequency-penalty", &s->frequency_penalty,
            "-2 to 2, subtracted for each time that a token is in the output (default 0)");
  AddText(app, "--seed", "N", "the same seed gives the same text (default: random)", [=](const std::string& text) {
    uint64_t seed = 0;
    if (!ParseWhole(text, &seed)) {
      throw UsageError("--seed is '" + text + "'; accepted: a whole number from 0 to 18446744073709551615");
    }
    s->seed = seed;
  });
  AddTexts(app, "--logit-bias", "ID=VALUE", "add VALUE to the logit of a token; -inf bans it (may be repeated)",
           [=](const std::string& text) {
             const size_t equals = text.find('=');
             std::pair<TokenId, float> bias;
             if (equals == std::string::npos || !ParseWhole(std::string_view(text).substr(0, equals), &bias.first) ||
                 !ParseWhole(std::string_view(text).substr(equals + 1), &bias.second)) {
               throw UsageError("--logit-bias is '" + text + "'; accepted: ID=VALUE, for example 42=-inf");
             }
             s->logit_bias.push_back(bias);
           });
  AddTexts(app, "--stop", "TEXT", "end the output before this text (may be repeated)", [=](const std::string& text) {
    if (text.empty()) throw UsageError("--stop is empty; give a text");
    stops->texts.push_back(text);
  });
  AddTexts(app, "--stop-id", "ID", "end the output before this token, as at EOS (may be repeated)",
           [=](const std::string& text) {
             TokenId id = -1;
             if (!ParseWhole(text, &id) || id < 0) {
               throw UsageError("--stop-id is '" + text + "'; accepted: a token id, for example 1");
             }
             stops->ids.push_back(id);
           });
}

void AddDialect(CLI::App* app, std::optional<ChatDialect>* dialect) {
  AddChoice<std::optional<ChatDialect>>(app, "--encoding", dialect,
                                        {{"v4", ChatDialect::kV4Preview}, {"v4-0731", ChatDialect::kV40731}},
                                        "prompt dialect (default: from the model folder, else v4)");
}

void AddSpecialTokens(CLI::App* app, SpecialTokensInContent* value, const std::string& usual) {
  AddChoice<SpecialTokensInContent>(
      app, "--special-tokens-in-content", value,
      {{"official", SpecialTokensInContent::kOfficial}, {"text", SpecialTokensInContent::kText}},
      "treat \"<think>\" and the like in messages as special tokens, as the official encoder does, or as text "
      "(default " +
          usual + ")");
}

}  // namespace dsv4::cli
