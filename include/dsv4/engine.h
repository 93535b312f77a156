// Engine: a loaded model on its device. A session (session.h) is one timeline of tokens on an engine; a snapshot
// (snapshot.h) is the state of a session at one point.
//
//   auto engine = dsv4::Engine::Load({.model_dir = "models/nano"});
//   auto session = (*engine)->NewSession();
//   std::vector<float> logits;
//   (*session)->Append(prompt_ids, dsv4::LogitRows::kLast, &logits);
//
// Thread-safety: one thread at a time may use an engine with its sessions and snapshots, except where a function says
// otherwise. The engine runs its own worker threads inside a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/speculation.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

struct ExpertUse;  // experts.h
class KvSnapshot;
struct MemoryPlan;  // inspect.h
class Sampler;
struct SampledToken;
class Session;
class SnapshotImage;
struct SnapshotInfo;

// Progress of loading weights, of a long prompt, or of writing a checkpoint.
struct Progress {
  enum class Phase { kLoading, kPrefill, kWriting } phase;
  int64_t done;  // bytes (kLoading, kWriting) or tokens (kPrefill)
  int64_t total;
};
// Return false to stop: the call then ends with StatusCode::kCancelled.
using ProgressFn = std::function<bool(const Progress&)>;

// Format of the routed experts of a synthetic model. The scales of kNvfp4Cast and kMxfp4 are at most nine different
// powers of two, as in the released checkpoints.
//   kNvfp4      NVFP4 with arbitrary E4M3 block scales, as a quantiser chooses them
//   kNvfp4Cast  NVFP4 cast from MXFP4
//   kMxfp4      MXFP4
enum class SyntheticExperts : uint8_t { kNvfp4, kNvfp4Cast, kMxfp4 };

// Random weights of a released shape, for measurements. The generated text has no meaning.
struct SyntheticModel {
  std::string shape;       // "flash", "pro" or "nano"; empty: load model_dir
  int64_t num_layers = 0;  // use the first num_layers layers; 0: all
  bool fp8_dense = false;  // attention, shared expert and head in FP8, compressors in BF16; false: all in NVFP4
  uint64_t seed = 1;       // the same seed gives the same weights on every device
  SyntheticExperts experts = SyntheticExperts::kNvfp4;
  bool skewed_routing = false;  // true: a few experts are chosen far more often, as in trained models; false: uniform
};

// Up to this number of decode rows (one token each) in a pass of a GPU, the bits of a row do not depend on the number
// of rows.
inline constexpr int64_t kMaxDecodeRows = 128;

// Pinning of each CPU thread to one core. kAuto: only on machines with several memory nodes (NUMA).
enum class Pinning : uint8_t { kAuto, kOn, kOff };

// Number of BF16 or FP16 terms that represent an input of a matrix product in prompt rows on a GPU
// (docs/dev/numerics.md, 3.1). With kOne and kTwo a row depends neither on the length of its prompt nor on whether it
// came from a cache.
//   kByLength   as decode rows for prompts of up to 128 tokens, two terms up to 1,024 tokens, one term above
//   kOne, kTwo  the same number for prompts of every length
enum class PromptInputs : uint8_t { kByLength, kOne, kTwo };

// Processor that computes offloaded experts (experts in host memory) in decode steps of a GPU (docs/offload.md). The
// CPU rounds differently (docs/dev/numerics.md). With kCpu and kAuto the bits of a result depend on which experts are
// offloaded, with kAuto also on the measured rates.
//   kGpu   the GPU reads them over the PCIe link
//   kCpu   the CPU computes all of them
//   kAuto  splits them so that CPU and GPU finish at the same time; the rates are measured at load
enum class ExpertCompute : uint8_t { kGpu, kCpu, kAuto };

// Tensor parallelism (docs/several-gpus.md).
struct RankOptions {
  // GPUs: the host orders collectives by events. Slower; for profilers and for GPUs without peer access.
  bool collectives_by_events = false;
  float collective_timeout_s = 10;  // GPUs: seconds that a rank waits for another before it fails; 0: no limit
  // Results have the same bits on one rank and on several. Every layer is computed in the maximum number of slices that
  // ranks can divide the model into, up to 8. Slower. Requires that all experts fit in GPU memory.
  bool invariant = false;
  bool check = false;  // compare the results of the ranks after every call; slow
};

// Draft tokens (docs/speculation.md). No bit of a result depends on these options.
struct DraftOptions {
  Speculate speculate = Speculate::kOff;
  int64_t tokens = 0;  // per sequence and step, at most kMaxDraftTokens; 0: the drafter's own number
  // 0 to 1: ends a draft before the first token whose expected acceptance is lower. Below 0: the measured times of
  // steps decide how long drafts are.
  float threshold = -1;
};

// Upper bound of every number of bytes in the options (1 PiB), so that sums of several do not overflow.
inline constexpr int64_t kMaxMemoryBytes = int64_t{1} << 50;

// Placement of weights that do not fit in GPU memory (docs/offload.md). Numbers are bytes unless stated otherwise.
struct OffloadOptions {
  // Limit for the memory used on each GPU; 0: no limit. On a CPU only with synthetic weights, as a limit of the plan,
  // for tests.
  int64_t gpu_memory = 0;
  // Limit for weights in host memory; 0: the free memory. On a GPU: weights that do not fit on the GPU. On a CPU: the
  // weights of the files. Weights over the limit are read from the disk whenever they are needed.
  int64_t host_memory = 0;
  // Memory on each rank that experts leave free for KV if not all experts fit. Loading fails if it is not available
  // even without experts. 0: the default. The default applies if the model does not fit on the GPU: 2 GiB, but at most
  // a sixteenth of the GPU's memory and at least one sequence of max_context.
  int64_t kv_room = 0;
  // Maximum number of experts per layer in GPU memory; the others stay in host memory. 0: all that fit. On a CPU as for
  // gpu_memory.
  int64_t expert_slots = 0;
  // kCpu and kAuto require one GPU; on a CPU only with synthetic weights and a limit, for tests. With them, decode
  // steps use no CUDA graphs if experts are in host memory.
  ExpertCompute expert_compute = ExpertCompute::kGpu;
  // File of WriteExpertCounts: the experts that it counts least often move to host memory first. Empty: the same number
  // of experts of each layer moves.
  std::string expert_counts = {};
};

struct EngineOptions {
  std::string model_dir;
  SyntheticModel synthetic = {};  // alternative to model_dir
  // One rank: "cpu", "cuda" (the first GPU), "cuda:1". Several ranks (docs/several-gpus.md): "cuda:0,1", "cuda:0-3",
  // "cuda:0*2", "cpu*2".
  std::string device = "cpu";
  int num_threads = 0;               // 0: one per core that this process may use
  Pinning pinning = Pinning::kAuto;  // kOn: kInvalidArgument if there are more threads than cores
  KvDtype kv_dtype = KvDtype::kFp8;
  IndexDtype index_dtype = IndexDtype::kFp4;
  ActivationDtype activation_dtype = ActivationDtype::kNative;
  // Maximum number of prompt tokens per pass through the model; 0: the device's default (CPU 512, GPU 4096). With the
  // default options no result depends on it (docs/dev/numerics.md, 4).
  int64_t prefill_chunk = 0;
  int64_t max_context = 0;  // tokens; 0: the model's own limit. More than that limit: kInvalidArgument
  // GPU, several ranks, or ranks.invariant: computes prompts of every length as decode rows (see StepItem). Slower
  // prefill.
  bool batch_invariant = false;
  PromptInputs prompt_inputs = PromptInputs::kByLength;
  // GPU: maximum number of decode rows per pass; more rows take several passes. One larger pass is faster than several,
  // but above kMaxDecodeRows the bits of a row depend on whether its pass has more than kMaxDecodeRows rows.
  int64_t max_decode_rows = kMaxDecodeRows;
  RankOptions ranks = {};
  AmxUse amx = AmxUse::kOff;  // CPU
  // GPU: stores routed experts in 4.125 instead of 4.5 bits per weight if their scales allow it. No bit of a result
  // depends on it (docs/dev/formats.md, 3.1).
  bool tight_experts = true;
  DraftOptions drafts = {};
  OffloadOptions offload = {};
  bool count_experts = false;  // fill Engine::expert_use().counts; always on if experts are in host memory
  bool reference_ops = false;  // run the plain reference implementation of every op (slow; for checking)
  ProgressFn progress = {};    // optional
  // Optional; called once, before memory for the model is allocated.
  std::function<void(const MemoryPlan&)> on_plan = {};
};

// Duration of the phases of Engine::Load, in seconds. The phases do not overlap.
struct LoadTimes {
  double open = 0;           // open the device
  double map = 0;            // read config and headers; check names, shapes and scales
  double allocate = 0;       // allocate memory for weights and staging
  double read = 0;           // read the files, and copy and pack at the same time (synthetic weights: make them)
  double pack = 0;           // copy and pack the rest after the last byte was read
  int64_t bytes = 0;         // read from the files, including those from the page cache
  int64_t cached_bytes = 0;  // read from the page cache
  bool direct = false;       // the reads bypassed the page cache
};

struct ModelInfo {
  int64_t vocab_size;
  int64_t num_layers;
  int64_t hidden_size;
  int64_t max_context;
  TokenId bos_token_id;  // -1: none
  std::vector<TokenId> eos_token_ids;
  std::vector<std::string> unused_tensors;  // in the files, but not part of the forward pass (mtp.*)
  // Values in the files that no forward pass uses: inv_freq, scales of a KV cache, scales of matrices without a scale.
  std::vector<std::string> skipped_tensors;
  int64_t weight_bytes;
  int64_t kv_fixed_bytes;               // KV of a session without tokens: window rings and compressor states
  double kv_bytes_per_token;            // KV per token, allocated in pages: compressed rows and index keys
  Speculate drafter = Speculate::kOff;  // the drafter of DraftOptions; for kAuto the one that was found
  std::string unusable_draft;           // with kAuto: why the draft module of the files is not used; empty: it is
};

// Returns one line about skipped_tensors; empty: there are none.
DSV4_API std::string WarningOfSkipped(const ModelInfo& info);

// Rows of logits that a step returns for a sequence.
enum class LogitRows : uint8_t {
  kNone,
  kLast,  // after the last token: [1, V]
  kAll,   // after every token: [tokens, V]
};

// On a GPU the kernels for a row depend on the row, not on the other rows of the step. Prompt rows are computed in one
// of three ways, which depends on the number of prompt tokens that the request computes in all its steps: up to 128 (as
// decode rows), up to 1,024, or more (docs/dev/numerics.md, 3.1). A caller that divides a prompt into several steps
// passes this number in each step. Then the division changes no bit.
struct StepItem {
  Session* session;
  std::span<const TokenId> tokens;  // at least one
  LogitRows rows = LogitRows::kLast;
  std::vector<float>* logits = nullptr;  // resized to rows * V; null with kNone, and with logits_into
  std::span<float> logits_into = {};     // memory of the caller instead of `logits`: exactly rows * V floats
  // 0: decode rows, for sampled tokens or tokens in their place. Otherwise prompt rows: the number of prompt tokens
  // that the request computes, in this step and in its other steps.
  int64_t prompt_tokens = 0;
};

// Called before each draw of an item. Returns the tokens that may be drawn, as the argument `allowed` of
// Sampler::Sample (one bit per token; empty: all). The span must stay valid until the next draw of the item.
using AllowedFn = std::function<std::span<const uint32_t>()>;

// Called before a step that would verify a draft. `drafted` are the draft tokens that follow the item's next token.
// Returns how many of them to verify, if the caller knows that the later ones cannot be drawn. Does not replace
// AllowedFn, which still decides at each draw.
using DraftLimitFn = std::function<size_t(std::span<const TokenId> drafted)>;

// One sequence of Engine::Decode.
struct DecodeItem {
  Session* session = nullptr;
  Sampler* sampler = nullptr;          // parameters, random state and counts; one per item
  TokenId first = -1;                  // appended before the first draw
  int64_t max_tokens = 0;              // maximum number of draws; at least 1
  std::vector<TokenId> stop_ids = {};  // drawing one of these ends the item
  AllowedFn allowed = {};              // empty: all tokens, always
  DraftLimitFn limit_draft = {};       // empty: verify all draft tokens
  bool speculate = true;               // false: no drafts
  // Optional; called after the tokens of a step that verified drafts.
  std::function<void(const Verification&)> on_verification = {};
};
// Called with every draw, in order within an item. Return false to end the item.
using TokenFn = std::function<bool(size_t item, const SampledToken& token)>;

class DSV4_API Engine {
 public:
  // Loads a model. Errors: kNotFound (no such folder or file), kDataLoss (damaged or contradictory files), kUnsupported
  // (a device or format that this build lacks), kResourceExhausted, kCancelled, kInvalidArgument (options).
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const ModelInfo& info() const = 0;
  virtual const LoadTimes& load_times() const = 0;

  // Returns an empty session. Its memory grows with the number of its tokens.
  virtual Result<std::unique_ptr<Session>> NewSession() = 0;

  // Returns a session that continues from `snapshot` (snapshot.h), which does not change. The results have the same
  // bits as in the session that the snapshot was taken from. Errors: kInvalidArgument (a snapshot of another engine),
  // kResourceExhausted.
  virtual Result<std::unique_ptr<Session>> NewSession(const KvSnapshot& snapshot) = 0;

  // Returns one line that is stored in snapshot files. It covers everything that the bits of a snapshot depend on:
  // weights, sizes, numerics, device, and the results for a few tokens. Engines with different lines compute different
  // bits. Computed on the first call.
  virtual Result<std::string> SnapshotFingerprint() = 0;

  // Loads a snapshot that KvSnapshot::Save has written. Errors are one line that names the file: kNotFound; kDataLoss
  // (truncated, modified, or not a snapshot); kUnsupported (a newer file format, or another fingerprint); and
  // kResourceExhausted.
  Result<std::shared_ptr<const KvSnapshot>> LoadSnapshot(const std::string& path);

  // The two halves of LoadSnapshot(path). ReadSnapshot may be called from any thread, also while another thread uses
  // the engine, after SnapshotFingerprint has returned once.
  virtual Result<std::shared_ptr<const SnapshotImage>> ReadSnapshot(const std::string& path) = 0;
  // The same for the bytes of SnapshotImage::bytes, which are copied. Any bytes are safe: they are checked like a file.
  Result<std::shared_ptr<const SnapshotImage>> ReadSnapshot(std::span<const std::byte> bytes) {
    return ReadSnapshotBytes(bytes);
  }
  virtual Result<std::shared_ptr<const KvSnapshot>> LoadSnapshot(const SnapshotImage& image) = 0;

  // Returns the header of a snapshot file. Reads only the header. Same errors as LoadSnapshot.
  virtual Result<SnapshotInfo> ReadSnapshotInfo(const std::string& path) = 0;

  // Any thread. While `stopped` is true, Step, Decode and Session::Append end with kCancelled: at once, or within the
  // time of a layer while they run. Several ranks and GPUs finish the pass that has begun. A stopped pass changes no
  // session, except that its tokens count as tokens that the session once had (Session::Truncate).
  virtual void SetStopped(bool stopped) { (void)stopped; }

  // Returns the bytes of KV memory that sessions and snapshots hold. Shared memory counts once.
  virtual int64_t kv_bytes() const = 0;

  // Returns the bytes of device memory that are free for sequences, including memory of ended sequences that the engine
  // keeps for reuse. 0: unknown.
  virtual int64_t free_bytes() const = 0;

  // Runs one step for several sessions with different numbers of tokens (a ragged batch). By default each session gets
  // exactly the logits that it would get alone, bit for bit. The options max_decode_rows, amx and
  // offload.expert_compute can change this (docs/dev/numerics.md, 4). Requires that each session appears at most once.
  // kInvalidArgument if an item has more tokens than its prompt_tokens, or logits_into has another size. On an error no
  // session has changed.
  virtual Status Step(std::span<const StepItem> items) = 0;

  // Draws and appends tokens for several sessions until each item has ended. Appends every draw except the last of each
  // item. Alternating calls of Step (with decode rows) and Sampler::Sample would give the same tokens, with drafts
  // (DraftOptions) and without. Same errors as Step and Sampler::Sample; after an error the sessions keep the tokens
  // that were appended before it.
  virtual Status Decode(std::span<const DecodeItem> items, const TokenFn& on_token) = 0;

  virtual DraftCounts draft_counts() const { return {}; }

  // Returns OK until the engine can run no more steps, because a GPU has failed or its ranks have lost each other. Then
  // every call that needs the device returns this error, until Restart. With several ranks the line begins with
  // `rank N` or `GPU N` if one of them caused the failure.
  virtual Status health() const { return {}; }

  // Closes the device, opens it again and loads the model again; an engine does not recover by itself. The engine, its
  // info and the fingerprint of its snapshots stay the same. Requires that all sessions and snapshots have been
  // destroyed, because their memory is lost (kInvalidArgument otherwise). Snapshot images and files stay valid. Same
  // errors as Load, and kDataLoss if the files now contain another model. After an error health() returns it, and
  // Restart may be called again. `progress` is called like EngineOptions::progress and may cancel (kCancelled).
  virtual Status Restart(const ProgressFn& progress = {}) {
    (void)progress;
    return Unsupported("this engine cannot be restarted");
  }

  // Returns how often experts were chosen since the engine was loaded, and how much of them was read from host memory.
  virtual Result<ExpertUse> expert_use() = 0;

  // Returns the minimum number of bytes that a decode step of `batch` sequences at `context` tokens reads: weights, KV
  // rows and index keys. It counts the number of routed experts that uniform routing is expected to choose.
  virtual double StepBytes(int64_t batch, int64_t context) const = 0;

  // Measures the rate, in bytes per second, at which the device reads its memory.
  virtual Result<double> MeasureReadRate() = 0;

 protected:
  virtual Result<std::shared_ptr<const SnapshotImage>> ReadSnapshotBytes(std::span<const std::byte> bytes);
};

// Writes the weights of options.synthetic as a checkpoint into the new folder `dir`: config.json, and safetensors
// shards of at most 5 GB with their index, NVFP4 in ModelOpt's layout. Writes no tokenizer. options.device makes the
// values, which are the same as in Engine::Load. Shards that do not fit on the disk of `dir` go to the new folder
// `overflow` (on another disk, or in memory), and `dir` gets links to them. overflow = "": all shards go to `dir`.
// Errors: kInvalidArgument (a folder exists), kNotFound (the parent of a folder does not exist), kResourceExhausted
// (the disks are too small; checked before anything is written), kCancelled. An error leaves no file on the disk.
DSV4_API Status WriteSyntheticCheckpoint(const EngineOptions& options, const std::string& dir,
                                         const std::string& overflow = "");

}  // namespace dsv4
