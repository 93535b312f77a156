// Finds and loads the model of -m.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/experts.h"
#include "dsv4/session.h"
#include "dsv4/tokenizer.h"
#include "options.h"
#include "progress.h"

namespace dsv4::cli {

// Returns `model_dir`. If it is empty, returns the folder of the bundled nano model, next to the installed binary or in
// the source tree. Throws if the folder does not exist.
std::string FindModelDir(const std::string& model_dir);

bool HasTokenizer(const std::string& model_dir);

// The sampling of generate and chat: flags that were given, then the model's generation_config.json.
SamplingParams SamplingOf(const SamplingParams& flags, const GivenSampling& given, const std::string& model_dir);

// Loads a model with a progress line; Ctrl-C stops it. Before that, calls options.on_plan with the memory plan and
// prints the plan to stderr. kWhenWatched: only for a GPU, if stderr is a terminal.
enum class TellPlan { kWhenWatched, kAlways, kNever };
std::unique_ptr<Engine> LoadEngine(EngineOptions options, ProgressLine& progress,
                                   TellPlan tell = TellPlan::kWhenWatched);

// Throws if a flag for GPU memory is used with a CPU.
void CheckGpuMemory(const EngineOptions& options);

// The file of --count-experts. Does nothing if `path` is empty.
class CountedExperts {
 public:
  // Throws if the file cannot be written, before a model is loaded. If --expert-counts names the same file, its counts
  // are kept and added to.
  CountedExperts(const std::string& path, const OffloadOptions& offload);
  void Begin(Engine& engine);  // the counts until now are not written
  void Write(Engine& engine);  // writes if there are new counts

  const std::string& path() const { return path_; }  // without links
  const ExpertCounts& kept() const { return kept_; }

 private:
  std::string path_;
  ExpertCounts kept_;
  std::optional<ExpertCountsFile> file_;
};

// Throws for the first id outside the vocabulary. `where` names the source of the ids.
void CheckTokenIds(std::span<const TokenId> ids, int64_t vocab_size, const std::string& where);

// Returns the token ids that end a reply: the ids of --stop-id, which must be in the vocabulary, and with `with_eos`
// the model's EOS ids.
std::vector<TokenId> StopIds(const StopOptions& stops, const ModelInfo& info, bool with_eos);

// Reads token ids that are separated by white space or commas ("-": stdin).
std::vector<TokenId> ReadTokenIds(const std::string& path);

}  // namespace dsv4::cli
