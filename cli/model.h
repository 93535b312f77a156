// Finding and loading what -m names.
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

// `model_dir`, or the bundled nano model when it is empty: beside the installed binary, else in the source tree.
// Throws when the folder does not exist.
std::string FindModelDir(const std::string& model_dir);

bool HasTokenizer(const std::string& model_dir);

// Loads with a progress line; Ctrl-C stops it. Before that, the memory plan goes to stderr, or not, or for a GPU when
// stderr is a terminal; and to `options.on_plan`.
enum class TellPlan { kWhenWatched, kAlways, kNever };
std::unique_ptr<Engine> LoadEngine(EngineOptions options, ProgressLine& progress,
                                   TellPlan tell = TellPlan::kWhenWatched);

// Throws where --gpu-memory was given with a CPU.
void CheckGpuMemory(const EngineOptions& options);

// The file of --count-experts; without a name nothing happens.
class CountedExperts {
 public:
  // Throws where the file could not be written, before a model is loaded. To what it holds is added where
  // --expert-counts names it, too.
  CountedExperts(const std::string& path, const OffloadOptions& offload);
  void Begin(Engine& engine);  // what was counted by now is no traffic
  void Write(Engine& engine);  // where something was counted since

  const std::string& path() const { return path_; }  // links resolved
  const ExpertCounts& kept() const { return kept_; }

 private:
  std::string path_;
  ExpertCounts kept_;
  std::optional<ExpertCountsFile> file_;
};

// Throws for the first id outside the vocabulary; `where` names their source.
void CheckTokenIds(std::span<const TokenId> ids, int64_t vocab_size, const std::string& where);

// The token ids that end a reply: those of --stop-id, which must lie in the vocabulary, and with_eos the model's own.
std::vector<TokenId> StopIds(const StopOptions& stops, const ModelInfo& info, bool with_eos);

// The file's token ids (white space or commas between them; "-": stdin).
std::vector<TokenId> ReadTokenIds(const std::string& path);

}  // namespace dsv4::cli
