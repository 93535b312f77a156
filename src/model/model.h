// A model as the engine uses it. Each family of models (deepseek_v4/) implements this interface. The engine knows
// tokens, positions, KV layouts and bytes; layers, weights and checkpoints are known only to the family.
//
//   OpenModel -> ModelSource (read and checked, nothing loaded) -> Load -> LoadedModel -> Forward
#pragma once

#include <atomic>
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

// The properties of a model's config that the engine uses; letters as in docs/dev/glossary.md.
struct ModelFacts {
  int64_t vocab_size = 0;         // V
  int64_t hidden_size = 0;        // D
  int64_t num_layers = 0;         // L
  int64_t num_experts = 0;        // E
  int64_t experts_per_token = 0;  // A
  int64_t max_positions = 0;      // of a sequence
  TokenId bos_token_id = -1;      // -1: none
  std::vector<TokenId> eos_token_ids;
  std::vector<std::string> unused_tensors;   // in the files, but not used by the forward pass
  std::vector<std::string> skipped_tensors;  // as in ModelInfo
  int64_t weight_bytes = 0;                  // in the files
  KvSpec kv;                                 // includes the rings of a draft module
  std::string unusable_draft;                // why the draft module of the files is not bound, with kAny; empty: it is
  DraftFacts draft;
};

// The rounding of activations and KV rows.
struct NumericsModes {
  KvDtype kv = KvDtype::kFp8;
  IndexDtype index = IndexDtype::kFp4;
  ActivationDtype activation = ActivationDtype::kNative;
};

// The tokens of one pass: S sequences of mixed lengths, one after the other.
struct Step {
  std::vector<int32_t> tokens;          // [T]
  std::vector<int64_t> positions;       // [T]
  std::vector<int32_t> sequence_of;     // [T]
  std::vector<SequenceView> sequences;  // [S]
  std::vector<int32_t> logit_rows;      // [R]: rows of [0, T) that get logits
  bool keeps_drafts = true;             // writes the data that a draft module reads of these positions

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t most_each() const;  // as in StepView
  // Appends a sequence: `ids`, from position view.start, in rows [view.begin, view.end); no logits.
  void Add(std::span<const TokenId> ids, const SequenceView& view);
  void Clear() {  // keeps the memory, and keeps_drafts
    tokens.clear(), positions.clear(), sequence_of.clear(), sequences.clear(), logit_rows.clear();
  }
};

// Ends a pass between two layers. The caches then have only a part of its rows.
struct PassStop {
  const std::atomic<bool>* wanted;
  bool ended = false;  // the pass ended early
};

// The same for kernels: the arrays are in the device's memory.
struct StepView {
  Tensor tokens;                            // i32 [T]
  Tensor positions;                         // i64 [T]
  const int32_t* sequence_of = nullptr;     // [T]
  const SequenceView* sequences = nullptr;  // [S]
  int64_t num_sequences = 0;
  Tensor logit_rows;         // i32 [R]
  int64_t most_each = 0;     // the most tokens of one sequence
  bool keeps_drafts = true;  // as in Step
  PassStop* stop = nullptr;  // null: the pass runs to its end

  int64_t num_tokens() const { return tokens.dim(0); }
};
StepView HostView(const Step& step);

// Receives rows [first, first + count) of a step's logits, which are in the first rows of the logits' memory.
using TakeLogits = std::function<void(int64_t first, int64_t count)>;

// The buffers of a step, allocated once for the largest one.
class StepMemory {
 public:
  virtual ~StepMemory() = default;
  virtual int64_t max_tokens() const = 0;
  virtual int64_t max_rows() const = 0;               // of logits
  virtual Tensor Logits(int64_t num_rows) const = 0;  // f32 [R, V]: memory for Forward's logits
  // f32 [R]: memory for Draft's confidence; only with a draft module
  virtual Tensor Confidence(int64_t /*num_rows*/) const { return {}; }
};

// The processor of experts in host memory in decode steps. `pool`: used to measure the CPU.
struct ExpertComputing {
  ExpertCompute by = ExpertCompute::kGpu;
  ThreadPool* pool = nullptr;
};

// Weights of one rank in a device's memory (or in mapped files, on the host), ready to run.
class LoadedModel {
 public:
  virtual ~LoadedModel() = default;

  virtual const KvLayout& kv_layout() const = 0;

  // Allocates memory on `device` for steps of up to max_tokens tokens with up to max_rows rows of logits. `device`
  // outlives it. Throws std::bad_alloc.
  virtual std::unique_ptr<StepMemory> MakeStepMemory(int64_t max_tokens, int64_t max_rows, Device& device) const = 0;

  // Decides how Forward works on the device and with the options of `ctx`, for all regimes. Call before the first pass.
  virtual void Plan(const ExecContext& ctx) = 0;

  // `logits` is f32 [R, V] or has fewer rows (at least 1). With fewer rows Forward writes the logits in pieces, each
  // into the same memory. It calls `take`, if set, after it has queued the kernels of a piece. Appends the step's
  // tokens to the caches of its sequences. step.stop may end it early. Requires: their pages reach that far, and
  // `memory` comes from MakeStepMemory of this model.
  virtual void Forward(const ExecContext& ctx, const StepView& step, StepMemory& memory, const Tensor& logits,
                       const TakeLogits& take) const = 0;

  virtual DraftFacts draft() const { return {}; }

  // Runs the draft module: predicts the token after each sequence's next one. The step has decode rows, one per
  // sequence, as for Forward. At place 0 a row has the sequence's new token, at the position after the last one that
  // Forward has processed (at least 1). At place j it has the token that was drafted at place j - 1, one position
  // further. Call for places 0, 1, .. up to DraftFacts::most - 1, for the same sequences, with no Forward in between.
  //
  // Writes logits f32 [S, V]. If DraftFacts::says_how_sure, also writes confidence f32 [S]: the logit of the
  // probability that the draft is accepted if the previous ones are. Changes nothing that Forward reads. Forward has
  // written the rows of the sequences into their caches, so nothing needs a commit. S * DraftFacts::rows is at most the
  // memory's tokens and rows, and at most 512. Requires a draft module.
  virtual void Draft(const ExecContext& ctx, const StepView& step, int64_t place, StepMemory& memory,
                     const Tensor& logits, const Tensor& confidence) const;

  // The name of the pass's collective number `site`, for messages: "layer 17, experts".
  virtual std::string ExchangeName(int64_t site) const = 0;

  // One line with the sizes that make the caches of two models differ. Part of the fingerprint of snapshots.
  virtual std::string Describe() const = 0;

  // Calls visit(data, bytes, factor) for the codes, scales and vectors of every weight, in a fixed order. `bytes` is
  // the device memory that the weight owns, `factor` its global scale. Weights in slices
  // (ModelSource::SliceForAnyRanks) are left out: VisitSlice visits them, for each of the rank's num_slices().
  virtual void VisitBytes(const std::function<void(const void* data, int64_t bytes, float factor)>& visit) const = 0;
  virtual int num_slices() const { return 0; }
  virtual void VisitSlice(int /*slice*/, const std::function<void(const void*, int64_t, float)>& /*visit*/) const {}

  // Makes passes count the experts that they choose, in the memory of `device`, which outlives the model. False: no
  // memory.
  [[nodiscard]] virtual bool CountExperts(Device& device) = 0;
  // Prepares offloaded experts; call before the first pass. `device` outlives the model. Passes of prompts copy experts
  // from the host to the device if that is faster; without memory or kernels for that, kernels read them on the host.
  // Experts can swap. Experts on the disk are loaded when a pass chooses them, while the host waits. Then no pass can
  // be recorded; nor can it if the CPU computes some experts (`how`). False: no memory.
  [[nodiscard]] virtual bool UseHostExperts(Device& device, ExpertComputing how) = 0;

  // The following functions are called between passes. Passes may be queued; only UseOfExperts waits for them. `device`
  // is this model's.
  //
  // Returns swaps that would make more of the recent choices `chosen` [L, E] resident, at most `most`.
  virtual std::vector<ExpertSwap> BetterPlaces(std::span<const double> chosen, int64_t most) const = 0;
  // Begins swaps while passes run; their recordings stay valid. It begins up to kMostSwapsAtOnce swaps and leaves out
  // swaps that the experts' places or sizes rule out. Returns how many; 0 also while others are in progress.
  virtual int64_t BeginSwaps(std::span<const ExpertSwap> swaps) = 0;
  // Continues the swaps as far as their copies have run. True: no swap is in progress.
  virtual bool ContinueSwaps(Device& device) = 0;
  // AskForCounts queues a download of the counts of all choices, [L, E], unless swaps are in progress. CountsAskedFor
  // returns them. Empty: not available yet; or never, because passes do not count or the device has failed.
  virtual void AskForCounts(Device& device) = 0;
  virtual std::vector<uint64_t> CountsAskedFor(Device& device) = 0;
  // Returns the counts of this rank when the device's queued work is done.
  virtual Result<ExpertUse> UseOfExperts(Device& device) const = 0;

  // The minimum of bytes that a decode step of `batch` sequences at `context` tokens reads.
  virtual double StepBytes(int64_t batch, int64_t context) const = 0;

  // The shapes of all matrices, without duplicates, in the order of their first use.
  virtual std::vector<LinearShape> LinearShapes() const = 0;
};

// The memory that a model needs on a device, computed before anything is allocated.
struct ModelSizes {
  int64_t weights = 0;       // on the device, with cache slots for experts of the host; on a CPU mapped from the files
  int64_t widened = 0;       // small vectors stored as f32, on a CPU
  int64_t loading = 0;       // in addition to the weights while they load
  int64_t host_staging = 0;  // pinned host memory while they load
  int64_t embedding = 0;     // the embedding table, wherever it is
  // host memory for data that the device reads there, while the model runs
  int64_t host_embedding = 0, host_experts = 0;
  std::vector<int64_t> experts_on_host;  // by layer; empty: none
  std::vector<int64_t> experts_on_disk;  // by layer; empty: none
  int64_t disk_experts = 0;              // bytes that they would take on the device
  std::vector<int64_t> expert_bytes;     // one expert, by layer
  int64_t mapped = 0;                    // the part of the weights that may stay in files while the model runs
  double decode_bytes = 0;               // weights that a decode step of one sequence reads, wherever they are
  double host_bytes_per_token = 0;       // expected bytes per token of experts on the host
  double disk_bytes_per_token = 0;       // expected bytes per token of experts on the disk
};

// A model that can be loaded: a checkpoint with checked config and tensor headers, or a synthetic model.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  virtual const ModelFacts& facts() const = 0;
  virtual std::vector<std::pair<std::string, std::string>> DescribeConfig() const = 0;  // field, value
  virtual std::vector<FormatSummary> formats() const = 0;
  virtual std::vector<std::string> files() const = 0;

  // Whether `count` ranks can divide it. An error names the field or the tensor, and the counts that work.
  virtual Status CheckRanks(int count) const = 0;

  // Makes ranks load and compute in slices whose number does not depend on the number of ranks, so that results' bits
  // do not either (RankOptions::invariant). Returns the number of slices of all ranks together: the most ranks that can
  // divide it.
  virtual int SliceForAnyRanks() = 0;
  // The same number after SliceForAnyRanks; 0 before.
  virtual int fixed_slices() const = 0;

  // On a CPU the sum over all `count` ranks, on GPUs the size of each.
  virtual ModelSizes Sizes(DeviceKind device, int count) const = 0;
  // Keeps the embedding table and then routed experts in host memory, where kernels read them (docs/offload.md). It
  // moves the least chosen experts by `counts` [L, E] (empty: equally many of every layer). It stops when Sizes'
  // weights are smaller by `bytes`, or all are moved. In any case at most `slots` experts of a layer stay on the
  // device. At least disk_bytes of the moved experts stay in the files, and passes load them from there; only if
  // CanLeaveOnDisk. Call before Load. A second call starts over. With files on a CPU nothing is moved: the experts are
  // in host memory already.
  virtual void KeepExpertsOnHost(DeviceKind device, int count, int64_t bytes, int64_t slots,
                                 std::span<const uint64_t> counts, int64_t disk_bytes) = 0;
  // Whether there are files to load experts from. (On a CPU, for tests, synthetic weights in memory take the place of
  // files.)
  virtual bool CanLeaveOnDisk(DeviceKind device) const = 0;
  // For one of `count` ranks.
  virtual int64_t StepMemoryBytes(int64_t max_tokens, int64_t max_rows, int count) const = 0;
  // The memory that the CPU's kernels keep between calls when a sequence has `max_context` tokens.
  virtual int64_t HostScratchBytes(int64_t max_context, int num_threads) const = 0;

  // Measures how fast experts are read from the files, past the page cache if possible. Returns bytes per second. 0:
  // there is nothing to read, or it cannot be read.
  virtual double MeasureReadRate() const { return 0; }

  // The kernels for each op of Forward on the device of `ctx`, which may be described only, for one of `count` ranks.
  virtual std::vector<PlannedOp> DescribePlan(const ExecContext& ctx, int count) const = 0;

  // Call once. Loads rank r's part of the model to devices[r] (several ranks may share a device); with one device, all
  // of it. On a CPU `available_bytes` decides whether files are read ahead or page by page on demand. `progress(done,
  // total)` is in bytes; false stops with kCancelled. Fills `times` from `allocate` on. Errors as in Engine::Load.
  virtual Result<std::vector<std::unique_ptr<LoadedModel>>> Load(
      std::span<Device* const> devices, ThreadPool& pool, int64_t available_bytes,
      const std::function<bool(int64_t done, int64_t total)>& progress, LoadTimes* times) = 0;
};

// Reads and checks config.json and the tensors' headers in `dir`. On a GPU the sizes must be within the limits of its
// kernels. `draft`: the draft module to bind. tight_experts: as in EngineOptions; on a GPU this reads the experts'
// scales. Errors: kNotFound, kDataLoss, kUnsupported.
Result<std::unique_ptr<ModelSource>> OpenModel(const std::string& dir, const NumericsModes& modes, const Device& device,
                                               DraftModule draft = DraftModule::kNone, bool tight_experts = true);

// A model with random weights of a released shape (SyntheticModel, dsv4/engine.h) and that draft module (kAny: none).
// Errors: kInvalidArgument.
Result<std::unique_ptr<ModelSource>> OpenSyntheticModel(const SyntheticModel& model, const NumericsModes& modes,
                                                        const Device& device, DraftModule draft = DraftModule::kNone,
                                                        bool tight_experts = true);

// Writes such weights as a checkpoint in the new folder `dir`, and in `overflow` (WriteSyntheticCheckpoint,
// dsv4/engine.h).
Status WriteSyntheticModel(Device& device, ThreadPool& pool, const SyntheticModel& model, const std::string& dir,
                           const std::string& overflow,
                           const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace dsv4
