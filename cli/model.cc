#include "model.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "dsv4/inspect.h"
#include "dsv4/json_text.h"
#include "dsv4/model_folder.h"
#include "errors.h"
#include "format.h"
#include "io.h"

namespace dsv4::cli {

namespace fs = std::filesystem;

std::string FindModelDir(const std::string& model_dir) {
  std::error_code error;
  if (!model_dir.empty()) {
    if (!HasTokenizer(model_dir)) Must(CheckModelFolder(model_dir));
    return model_dir;
  }
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = binary.parent_path().parent_path() / "share/dsv4/models/nano";
  std::vector<fs::path> places = {installed};
  if (const fs::path source = DSV4_SOURCE_DIR; !source.empty()) places.push_back(source / "models/nano");
  for (const fs::path& dir : places) {
    if (fs::exists(dir / "tokenizer.json", error)) return dir.string();
  }
  throw RunError("the bundled nano model is not in " + installed.string() +
                 (places.size() > 1 ? " nor in " + places[1].string() : "") +
                 "; install the package dsv4-nano, or give a model folder with -m");
}

bool HasTokenizer(const std::string& model_dir) {
  std::error_code error;
  return fs::exists(fs::path(model_dir) / "tokenizer.json", error);
}

namespace {

// Describes the memory plan.
std::string PlanLine(const MemoryPlan& p) {
  const double context = static_cast<double>(p.max_context) * p.kv_bytes_per_1k_tokens / 1000;
  const auto kv_per_token = static_cast<int64_t>(p.kv_bytes_per_1k_tokens / 1000);
  std::string line = "memory on " + p.device + ": weights " + FormatBytes(p.weight_bytes + p.widened_bytes) +
                     ", activations " + FormatBytes(p.activation_bytes) + ", scratch " + FormatBytes(p.scratch_bytes) +
                     ", KV per sequence " + FormatBytes(p.kv_fixed_bytes) + " and " + FormatBytes(kv_per_token) +
                     " per token (" + FormatBytes(p.kv_fixed_bytes + static_cast<int64_t>(context)) + " at " +
                     FormatCount(p.max_context) + "); free " +
                     (p.available_bytes > 0 ? FormatBytes(p.available_bytes) : "unknown");
  if (p.max_context_that_fits < p.max_context && !p.weights_are_paged())
    line += ", enough for " + FormatCount(p.max_context_that_fits) + " tokens";
  if (p.loading_bytes > 0) {
    line += "; loading needs " + FormatBytes(p.loading_bytes) + " of it";
    if (p.host_staging_bytes > 0) line += " and " + FormatBytes(p.host_staging_bytes) + " of host memory";
  }
  return line + "\n";
}

// Describes the weights in host memory and their cost.
std::string HostLine(const MemoryPlan& p) {
  if (p.experts_on_host.empty())
    return "the embedding table stays in host memory (" + FormatBytes(p.host_embedding_bytes) + "); all experts fit\n";
  const auto [least, most] = std::minmax_element(p.experts_on_host.begin(), p.experts_on_host.end());
  int64_t on_host = 0, layers = 0;
  for (const int64_t n : p.experts_on_host) on_host += n, layers += n > 0 ? 1 : 0;
  const bool table = p.host_embedding_bytes > 0;
  return FormatCount(on_host) + " of " + FormatCount(p.experts) + " experts" +
         (table ? " and the embedding table" : "") + " stay in host memory (" +
         (table ? FormatBytes(p.host_embedding_bytes) + " and " : "") + FormatBytes(p.host_expert_bytes) + "; " +
         FormatCount(layers) + " of " + FormatCount(static_cast<int64_t>(p.experts_on_host.size())) + " layers, " +
         FormatCount(*least) + " to " + FormatCount(*most) + " per layer); a token is expected to read " +
         FormatBytes(static_cast<int64_t>(p.host_bytes_per_token)) + " of them over PCIe, about " +
         FormatFixed(1e3 * p.host_bytes_per_token / kHostLinkRate, 2) + " ms at " +
         FormatFixed(kHostLinkRate / 1e9, 0) + " GB/s\n";
}

// Describes the weights that are read from the disk and their cost.
std::string DiskLine(const MemoryPlan& p) {
  const bool on_gpu = !p.experts_on_disk.empty();
  std::string line = "warning: " + FormatBytes(p.disk_bytes) + " of the weights do not fit in " +
                     (on_gpu ? p.device + " and host memory (" : "memory (") +
                     FormatBytes(on_gpu ? p.host_available_bytes : p.available_bytes) +
                     ") and are read from the disk when tokens choose them: " +
                     FormatBytes(static_cast<int64_t>(p.disk_bytes_per_token)) + " per token with uniform routing";
  if (p.disk_rate > 0) {
    line += ", about " + FormatFixed(p.disk_bytes_per_token / p.disk_rate, 2) + " s at " +
            FormatFixed(p.disk_rate / 1e9, 2) + " GB/s, measured now";
  }
  return line + "\n";
}

// The weights of files on a CPU are pages that the system may take back: it decides how many stay.
std::string HostMemoryNote(int64_t bytes) {
  return "--host-memory bounds the weights that loading reads into memory (" + FormatBytes(bytes) +
         "), not the process: the system keeps pages of the files as long as it has room, and activations, KV and the "
         "program come on top; to bound all of it, use a cgroup (systemd-run --user --scope -p MemoryMax=SIZE dsv4 "
         "...)";
}

}  // namespace

void CheckGpuMemory(const EngineOptions& options) {
  if (IsCpu(options.device) && options.offload.expert_compute != ExpertCompute::kGpu) {
    throw UsageError("--expert-compute needs a GPU: remove it, or add --device cuda");
  }
  if (IsCpu(options.device) && (options.offload.gpu_memory > 0 || options.offload.expert_slots > 0)) {
    throw UsageError(std::string(options.offload.gpu_memory > 0 ? "--gpu-memory" : "--expert-slots") +
                     " limits the memory of a GPU: remove it, or add --device cuda");
  }
}

CountedExperts::CountedExperts(const std::string& path, const OffloadOptions& offload) {
  if (path.empty()) return;
  path_ = ResolveReplaceableFile(path);
  std::error_code none;  // the file does not exist, or --expert-counts is not set
  if (fs::equivalent(path_, offload.expert_counts, none)) kept_ = Must(ReadExpertCounts(path_));
}

void CountedExperts::Begin(Engine& engine) {
  if (!path_.empty()) file_.emplace(path_, kept_, Must(engine.expert_use()).counts);
}

void CountedExperts::Write(Engine& engine) {
  if (!file_) return;
  file_->Update(Must(engine.expert_use()).counts);
  Must(file_->Write());
}

std::unique_ptr<Engine> LoadEngine(EngineOptions options, ProgressLine& progress, TellPlan tell) {
  CheckGpuMemory(options);
  if (options.ranks.check && options.device.find_first_of(",*-") == std::string::npos) {
    throw UsageError("--check-ranks needs several ranks, and --device " + options.device +
                     " names one: remove it, or use --device cuda:0,1 or cpu*2");
  }
  options.progress = [own = progress.Callback(), also = options.progress](const Progress& p) {
    return (!also || also(p)) && own(p);
  };
  const bool watched = tell == TellPlan::kWhenWatched && !IsCpu(options.device) && StderrIsTerminal();
  const bool cpu_computes = options.offload.expert_compute != ExpertCompute::kGpu;
  options.on_plan = [tell, watched, cpu_computes, also = options.on_plan](const MemoryPlan& plan) {
    if (also) also(plan);
    if (tell == TellPlan::kNever) return;
    if (tell == TellPlan::kAlways || watched) PrintError(PlanLine(plan));
    if (plan.host_embedding_bytes + plan.host_expert_bytes > 0) PrintError(HostLine(plan));
    if (plan.disk_bytes > 0) PrintError(DiskLine(plan));
    if (cpu_computes && plan.experts_on_host.empty())
      PrintError("all experts are in GPU memory: --expert-compute has no effect\n");
  };
  auto engine = Must(Engine::Load(options));
  progress.Clear();
  if (IsCpu(options.device) && options.offload.host_memory > 0 && options.synthetic.shape.empty())
    PrintNote(HostMemoryNote(options.offload.host_memory));
  const std::string skipped = WarningOfSkipped(engine->info());
  if (!skipped.empty() && tell != TellPlan::kNever) PrintError("warning: " + Printable(skipped) + "\n");
  if (options.drafts.speculate == Speculate::kAuto && tell != TellPlan::kNever) {
    const std::string who(kSpeculateNames[static_cast<size_t>(engine->info().drafter)]);
    const std::string& why = engine->info().unusable_draft;
    PrintError("--speculate auto: drafts by " + who + (why.empty() ? "" : ": " + Printable(why)) + "\n");
  }
  return engine;
}

SamplingParams SamplingOf(const SamplingParams& flags, const GivenSampling& given, const std::string& model_dir) {
  const SamplingParams model = Must(ReadDefaultSampling(model_dir));
  SamplingParams out = flags;
  if (!given.temperature) out.temperature = model.temperature;
  if (!given.top_k) out.top_k = model.top_k;
  if (!given.top_p) out.top_p = model.top_p;
  if (!given.min_p) out.min_p = model.min_p;
  if (!given.repeat_penalty) out.repeat_penalty = model.repeat_penalty;
  return out;
}

void CheckTokenIds(std::span<const TokenId> ids, int64_t vocab_size, const std::string& where) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      throw RunError(where + ": token id " + std::to_string(ids[i]) + " (index " + std::to_string(i) +
                     ") is outside the vocabulary; accepted: 0 to " + std::to_string(vocab_size - 1));
    }
  }
}

std::vector<TokenId> StopIds(const StopOptions& stops, const ModelInfo& info, bool with_eos) {
  for (const TokenId id : stops.ids) {
    if (id < info.vocab_size) continue;
    throw RunError("--stop-id is '" + std::to_string(id) + "'; accepted: token ids from 0 to " +
                   std::to_string(info.vocab_size - 1));
  }
  std::vector<TokenId> ids = stops.ids;
  if (with_eos) ids.insert(ids.end(), info.eos_token_ids.begin(), info.eos_token_ids.end());
  return ids;
}

std::vector<TokenId> ReadTokenIds(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  auto ids = ParseTokenIdList(ReadInput(path));
  if (!ids.ok()) throw RunError(name + ": " + ids.status().message());
  return std::move(*ids);
}

}  // namespace dsv4::cli
