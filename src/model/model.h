// A model as the engine sees it; each family of models (deepseek_v4/) lies behind this header. The engine knows tokens,
// positions, KV layouts and bytes; what layers, weights and checkpoints look like stays in the family's folder.
//
//   OpenModel -> ModelSource (read and checked, nothing loaded) -> Load -> LoadedModel -> Forward
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "device/exec_context.h"
#include "dsv4/engine.h"
#include "dsv4/experts.h"
#include "dsv4/inspect.h"
#include "dsv4/measure.h"
#include "dsv4/status.h"
#include "dsv4/types.h"
#include "kv/layout.h"
#include "model/draft_module.h"
#include "model/expert_swap.h"
#include "tensor/tensor.h"

namespace dsv4 {

// What the engine needs to know of a model's config, in letters of docs/dev/glossary.md.
struct ModelFacts {
  int64_t vocab_size = 0;         // V
  int64_t hidden_size = 0;        // D
  int64_t num_layers = 0;         // L
  int64_t num_experts = 0;        // E
  int64_t experts_per_token = 0;  // A
  int64_t max_positions = 0;      // of a sequence
  TokenId bos_token_id = -1;      // -1: none
  std::vector<TokenId> eos_token_ids;
  std::vector<std::string> unused_tensors;  // in the files but not part of the forward pass
  int64_t weight_bytes = 0;                 // in the files
  KvSpec kv;                                // the rings of a draft module included
  DraftFacts draft;
};

// What rounds activations and KV rows.
struct NumericsModes {
  KvDtype kv = KvDtype::kFp8;
  IndexDtype index = IndexDtype::kFp4;
  ActivationDtype activation = ActivationDtype::kNative;
};

// The tokens of one pass: S sequences of mixed lengths, one behind the other.
struct Step {
  std::vector<int32_t> tokens;          // [T]
  std::vector<int64_t> positions;       // [T]
  std::vector<int32_t> sequence_of;     // [T]
  std::vector<SequenceView> sequences;  // [S]
  std::vector<int32_t> logit_rows;      // [R]: rows of [0, T) whose logits are wanted
  bool keeps_drafts = true;             // writes what a draft module reads of these positions

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t most_each() const;  // as StepView's
  // Appends a sequence: `ids` from position view.start on, which are the rows [view.begin, view.end); no logits.
  void Add(std::span<const TokenId> ids, const SequenceView& view);
  void Clear() {  // keeps the memory, and keeps_drafts
    tokens.clear(), positions.clear(), sequence_of.clear(), sequences.clear(), logit_rows.clear();
  }
};

// The same as kernels read it: arrays in the device's memory.
struct StepView {
  Tensor tokens;                            // i32 [T]
  Tensor positions;                         // i64 [T]
  const int32_t* sequence_of = nullptr;     // [T]
  const SequenceView* sequences = nullptr;  // [S]
  int64_t num_sequences = 0;
  Tensor logit_rows;         // i32 [R]
  int64_t most_each = 0;     // tokens that a sequence has, at most
  bool keeps_drafts = true;  // as Step's

  int64_t num_tokens() const { return tokens.dim(0); }
};
StepView HostView(const Step& step);

// Takes rows [first, first + count) of a step's logits, which lie in the first rows of the memory for them.
using TakeLogits = std::function<void(int64_t first, int64_t count)>;

// The buffers of a step, sized once for the largest one.
class StepMemory {
 public:
  virtual ~StepMemory() = default;
  virtual int64_t max_tokens() const = 0;
  virtual int64_t max_rows() const = 0;                                 // of logits
  virtual Tensor Logits(int64_t num_rows) const = 0;                    // f32 [R, V]: where Forward's logits may go
  virtual Tensor Confidence(int64_t /*num_rows*/) const { return {}; }  // f32 [R]: the same of Draft; with a module
};

// Who computes experts of the host's memory in decode steps; `pool`: to measure the CPU with.
struct ExpertComputing {
  ExpertCompute by = ExpertCompute::kGpu;
  ThreadPool* pool = nullptr;
};

// Weights in a device's memory (or in mapped files, on the host), ready to run. One rank's.
class LoadedModel {
 public:
  virtual ~LoadedModel() = default;

  virtual const KvLayout& kv_layout() const = 0;

  // For steps of up to max_tokens tokens with up to max_rows rows of logits, in the memory of `device`, which outlives
  // them. Throws std::bad_alloc.
  virtual std::unique_ptr<StepMemory> MakeStepMemory(int64_t max_tokens, int64_t max_rows, Device& device) const = 0;

  // Decides, for the device and options of `ctx`, what Forward does: once, before the first pass. Regimes are all
  // covered.
  virtual void Plan(const ExecContext& ctx) = 0;

  // logits f32 [R, V], or fewer rows, of which at least one: then they are made so many at a time, each time anew.
  // `take` is called behind each such piece, if it is one; its kernels are queued. Appends the step's tokens to the
  // caches of its sequences, whose pages must reach that far. `memory` comes from MakeStepMemory of this model.
  virtual void Forward(const ExecContext& ctx, const StepView& step, StepMemory& memory, const Tensor& logits,
                       const TakeLogits& take) const = 0;

  virtual DraftFacts draft() const { return {}; }

  // What a draft module says of the token behind each sequence's next one. The step is one of decode rows, one a
  // sequence, as if for Forward: place 0 has the sequence's new token, at the position behind what Forward has
  // processed (1 at least); place j the token that was drafted at place j - 1, one position on. Places come in order,
  // 0 to DraftFacts::most - 1, for the same sequences, with no Forward between. logits f32 [S, V]; confidence
  // f32 [S]: where DraftFacts::says_how_sure, the logit that the draft will be right if those before it are. Nothing
  // that Forward reads is touched; sequences' rows lie in their caches, written by Forward, so there is nothing to
  // commit. S * DraftFacts::rows is within the memory's tokens and rows, and at most 512. Only with a draft module.
  virtual void Draft(const ExecContext& ctx, const StepView& step, int64_t place, StepMemory& memory,
                     const Tensor& logits, const Tensor& confidence) const;

  // Where ranks exchange for the site-th time in a pass, for messages: "layer 17, experts".
  virtual std::string ExchangeName(int64_t site) const = 0;

  // One line: sizes that make caches of two models differ. Part of the fingerprint of snapshots.
  virtual std::string Describe() const = 0;

  // Calls visit(data, bytes, factor) for the codes, scales and vectors of every weight, in a fixed order: `bytes` of
  // the device's memory, all of which that weight owns, and its global scale. Of what comes in slices
  // (ModelSource::SliceForAnyRanks) nothing; VisitSlice visits it, for each of the rank's num_slices().
  virtual void VisitBytes(const std::function<void(const void* data, int64_t bytes, float factor)>& visit) const = 0;
  virtual int num_slices() const { return 0; }
  virtual void VisitSlice(int /*slice*/, const std::function<void(const void*, int64_t, float)>& /*visit*/) const {}

  // From now on passes count the experts that they choose, in the memory of `device`, which outlives the model. False:
  // no room for it.
  [[nodiscard]] virtual bool CountExperts(Device& device) = 0;
  // From now on prompts' passes bring experts of the host to `device`, which outlives the model, where that is faster;
  // where it has no room or no kernels for that, they read them there. And experts can change places. Those of the disk
  // are brought as passes choose them, while the host waits: no pass can be recorded then, nor where the CPU computes
  // some (`how`). Before the first pass. False: no room for that.
  [[nodiscard]] virtual bool UseHostExperts(Device& device, ExpertComputing how) = 0;

  // The following are called between passes, some of which may be queued; only the last one waits for those. `device`
  // is theirs.
  //
  // Swaps of experts that would serve what was `chosen` lately [L, E] better, at most `most`.
  virtual std::vector<ExpertSwap> BetterPlaces(std::span<const double> chosen, int64_t most) const = 0;
  // Begins to make them, beside the passes, whose recordings stay good: as many as are made at a time, without those
  // that the experts' places or sizes forbid. How many; 0 also while others are under way.
  virtual int64_t BeginSwaps(std::span<const ExpertSwap> swaps) = 0;
  // Goes on with what was begun, as far as its copies have run. True: nothing is under way.
  virtual bool ContinueSwaps(Device& device) = 0;
  // Has what passes have chosen so far, [L, E], brought to the host, while no swaps are under way; CountsAskedFor gives
  // it. Empty: it is not there yet, or never will be: passes do not count, or the device has failed.
  virtual void AskForCounts(Device& device) = 0;
  virtual std::vector<uint64_t> CountsAskedFor(Device& device) = 0;
  // What they have counted, of this rank, once the device's queued work is done.
  virtual Result<ExpertUse> UseOfExperts(Device& device) const = 0;

  // Bytes that a decode step of `batch` sequences at `context` tokens reads at least.
  virtual double StepBytes(int64_t batch, int64_t context) const = 0;

  // Shapes of all matrices, each once, in the order of their first use.
  virtual std::vector<LinearShape> LinearShapes() const = 0;
};

// What a model takes of a device's memory before anything is allocated.
struct ModelSizes {
  int64_t weights = 0;       // on the device, with places for experts of the host; mapped from the files on a CPU
  int64_t widened = 0;       // small vectors kept as f32, on a CPU
  int64_t loading = 0;       // beside the weights while they load
  int64_t host_staging = 0;  // pinned memory of the host while they load
  int64_t embedding = 0;     // of the embedding table, wherever it is
  int64_t host_embedding = 0, host_experts = 0;  // of the host, for what the device reads there; as they run
  std::vector<int64_t> experts_on_host;          // by layer; empty: none
  std::vector<int64_t> experts_on_disk;          // likewise
  int64_t disk_experts = 0;                      // bytes that they would take on the device
  std::vector<int64_t> expert_bytes;             // of one expert, by layer
  int64_t mapped = 0;                            // of the weights, what may stay in files while the model runs
  double decode_bytes = 0;          // of weights, that a decode step of one sequence reads, wherever they are
  double host_bytes_per_token = 0;  // that a token's experts are expected to have there
  double disk_bytes_per_token = 0;  // likewise on the disk
};

// A model that can be loaded: a checkpoint whose config and tensor headers are read and checked, or a synthetic one.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  virtual const ModelFacts& facts() const = 0;
  virtual std::vector<std::pair<std::string, std::string>> DescribeConfig() const = 0;  // field, value
  virtual std::vector<FormatSummary> formats() const = 0;
  virtual std::vector<std::string> files() const = 0;

  // Whether `count` ranks can divide it; the error names the field or the tensor, and the counts that work.
  virtual Status CheckRanks(int count) const = 0;

  // From now on ranks compute, and are loaded, in slices whose number does not depend on theirs, so that neither do
  // results' bits (RankOptions::invariant). Returns the slices of all ranks: the most ranks that can divide it.
  virtual int SliceForAnyRanks() = 0;
  // As many, once that was asked for; before 0.
  virtual int fixed_slices() const = 0;

  // Of all `count` ranks together on a CPU, of each on GPUs.
  virtual ModelSizes Sizes(DeviceKind device, int count) const = 0;
  // Keeps the embedding table, then routed experts in the host's memory, where kernels read them (docs/offload.md): the
  // least chosen by `counts` [L, E] (empty: as many of every layer), until Sizes' weights are `bytes` less or all are
  // there, and the device has `slots` of a layer, at most.
  // Of these at least disk_bytes stay in the files, from where passes bring them; only where CanLeaveOnDisk.
  // Before Load; a second call starts over. Of files on a CPU none are moved: they are the host's already.
  virtual void KeepExpertsOnHost(DeviceKind device, int count, int64_t bytes, int64_t slots,
                                 std::span<const uint64_t> counts, int64_t disk_bytes) = 0;
  // Whether there are files to bring experts from. (On a CPU, for tests, weights that were made stand for files.)
  virtual bool CanLeaveOnDisk(DeviceKind device) const = 0;
  // Of one of `count` ranks.
  virtual int64_t StepMemoryBytes(int64_t max_tokens, int64_t max_rows, int count) const = 0;
  // What the CPU's kernels keep between calls, once a sequence has `max_context` tokens.
  virtual int64_t HostScratchBytes(int64_t max_context, int num_threads) const = 0;

  // Bytes a second at which experts are read from the files, past the page cache where that can be, some of them, now;
  // 0: there is nothing to read, or it cannot be read.
  virtual double MeasureReadRate() const { return 0; }

  // Which kernels take an op of Forward on the device of `ctx`, which may be described only; of one of
  // `count` ranks.
  virtual std::vector<PlannedOp> DescribePlan(const ExecContext& ctx, int count) const = 0;

  // Once: rank r's part of the model for devices[r] (several ranks may share one), or all of it for one device.
  // `available_bytes` of memory decides on a CPU whether files are read ahead or as their pages are needed.
  // `progress(done, total)` in bytes; false stops with kCancelled. Fills `times` from `allocate` on. Errors as
  // Engine::Load.
  virtual Result<std::vector<std::unique_ptr<LoadedModel>>> Load(
      std::span<Device* const> devices, ThreadPool& pool, int64_t available_bytes,
      const std::function<bool(int64_t done, int64_t total)>& progress, LoadTimes* times) = 0;
};

// Reads and checks config.json and the tensors' headers in `dir`. On a GPU sizes must be within what its kernels take.
// `draft`: the draft module to bind with it. tight_experts: EngineOptions; then, on a GPU, experts' scales are read.
// Errors: kNotFound, kDataLoss, kUnsupported.
Result<std::unique_ptr<ModelSource>> OpenModel(const std::string& dir, const NumericsModes& modes, const Device& device,
                                               DraftModule draft = DraftModule::kNone, bool tight_experts = true);

// Random weights of a released shape (SyntheticModel, dsv4/engine.h), with that draft module; of kAny without. Errors:
// kInvalidArgument.
Result<std::unique_ptr<ModelSource>> OpenSyntheticModel(const SyntheticModel& model, const NumericsModes& modes,
                                                        const Device& device, DraftModule draft = DraftModule::kNone,
                                                        bool tight_experts = true);

// Such weights as a checkpoint in the new folder `dir`, and in `overflow` (WriteSyntheticCheckpoint, dsv4/engine.h).
Status WriteSyntheticModel(Device& device, ThreadPool& pool, const SyntheticModel& model, const std::string& dir,
                           const std::string& overflow,
                           const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace dsv4
