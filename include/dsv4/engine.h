// Engine: a loaded model on its device. Sessions (session.h) are timelines on it, snapshots (snapshot.h) their past.
//
//   auto engine = dsv4::Engine::Load({.model_dir = "models/nano"});
//   auto session = (*engine)->NewSession();
//   std::vector<float> logits;
//   (*session)->Append(prompt_ids, dsv4::LogitRows::kLast, &logits);
//
// Threads: an Engine, its Sessions and their snapshots are used by one thread at a time; the engine runs its own
// workers inside a call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

// Reported while weights load, while a long prompt is processed and while a checkpoint is written. Return false to
// stop: the call then ends with StatusCode::kCancelled.
struct Progress {
  enum class Phase { kLoading, kPrefill, kWriting } phase;
  int64_t done;  // bytes (kLoading, kWriting) or tokens (kPrefill)
  int64_t total;
};
using ProgressFn = std::function<bool(const Progress&)>;

// What the scales of synthetic experts are. kNvfp4: any E4M3 numbers, as a quantiser chooses them. The others: up to
// nine powers of two, as in the released checkpoints: MXFP4 itself, or NVFP4 that was cast from it.
enum class SyntheticExperts : uint8_t { kNvfp4, kNvfp4Cast, kMxfp4 };

// Random weights of a released shape, for measurements; nothing can be said about the text they write.
struct SyntheticModel {
  std::string shape;       // "flash", "pro" or "nano"; empty: read model_dir
  int64_t num_layers = 0;  // the first so many; 0: all
  bool fp8_dense = false;  // attention, shared expert and head in FP8, compressors in BF16; else NVFP4 throughout
  uint64_t seed = 1;       // same seed, same weights, on every device
  SyntheticExperts experts = SyntheticExperts::kNvfp4;
  bool skewed_routing = false;  // some experts are chosen far more often, as in trained models; else about alike
};

// Rows that decode a token each, in one pass of a GPU: up to here a row's bits do not depend on their number.
inline constexpr int64_t kMaxDecodeRows = 128;

// Whether the CPU's threads keep to one core each. kAuto: on machines with several memory nodes (NUMA).
enum class Pinning : uint8_t { kAuto, kOn, kOff };

// Numbers that stand for an input of a matrix product in the rows of a prompt, on a GPU (docs/dev/numerics.md, 3.1).
// kByLength: as decode rows have them in a prompt of up to 128 tokens, two up to 1,024, else one. The others hold for
// prompts of every length: then a row does not depend on the length of its prompt either, nor on whether it came from a
// cache.
enum class PromptInputs : uint8_t { kByLength, kOne, kTwo };

// Who computes the experts of the host's memory in decode steps of a GPU (docs/offload.md). kCpu: the host's CPU does,
// all of them; kAuto: as many as it has done when the GPU has read the others over the link, by rates measured when the
// model is loaded. The CPU rounds otherwise (docs/dev/numerics.md), so bits depend on where experts lie, kAuto's on
// these rates too.
enum class ExpertCompute : uint8_t { kGpu, kCpu, kAuto };

// Several ranks (docs/several-gpus.md).
struct RankOptions {
  // GPUs: ordered by the host, for profilers and GPUs without peer access; slower
  bool exchange_by_events = false;
  float exchange_timeout_s = 10;  // GPUs: that one waits for another before it gives it up; 0: for ever
  // Results have the same bits on one rank and on several, in as many slices as ranks can divide the model, at most 8;
  // slower, and a model's whole experts must lie on the GPUs
  bool invariant = false;
  bool check = false;  // compares what ranks have computed after every call; slow
};

// Drafts (docs/speculation.md); no bit of a result depends on them.
struct DraftOptions {
  Speculate speculate = Speculate::kOff;
  int64_t tokens = 0;  // of a sequence in a step, at most kMaxDraftTokens; 0: what suits the drafter
  // from 0 to 1: a draft ends in front of the first token that is less likely to be accepted; below 0: drafts are as
  // long as measured times of steps make worth while
  float threshold = -1;
};

// No number of bytes in options is larger (1 PiB): sums of several do not overflow.
inline constexpr int64_t kMostMemory = int64_t{1} << 50;

// What becomes of weights that do not fit a GPU (docs/offload.md). Bytes; 0: as said.
struct OffloadOptions {
  // of each GPU, as if it had no more; 0: all. On a CPU for synthetic weights: a limit to the plan, for tests
  int64_t gpu_memory = 0;
  // of the host, that weights may take: those that do not fit a GPU, on a CPU the files', which are read from the disk
  // beyond it, as their pages are needed; 0: what is free
  int64_t host_memory = 0;
  // what experts leave free for KV on each rank, where not all fit beside it; refused where it is not there without
  // any. 0: where the model does not fit a GPU, 2 GiB (a sixteenth of smaller GPUs' memory), or one sequence of
  // max_context where that is more
  int64_t kv_room = 0;
  // of each layer, that a GPU holds at most, the others are on the host; 0: as many as fit. On a CPU as gpu_memory
  int64_t expert_slots = 0;
  // one GPU; refused on a CPU, but for tests with synthetic weights under a limit. Steps are not recorded where it
  // takes effect: where experts are on the host
  ExpertCompute expert_compute = ExpertCompute::kGpu;
  // file of WriteExpertCounts: the least chosen experts go to the host first; empty: as many of each layer
  std::string expert_counts = {};
};

struct EngineOptions {
  std::string model_dir;
  SyntheticModel synthetic = {};  // instead of model_dir
  // "cpu", "cuda" (the first GPU), "cuda:1"; several ranks (docs/several-gpus.md): "cuda:0,1", "cuda:0-3", "cuda:0*2",
  // "cpu*2"
  std::string device = "cpu";
  int num_threads = 0;               // 0: one per core that this process may use
  Pinning pinning = Pinning::kAuto;  // kOn: refused when there are more threads than cores
  KvDtype kv_dtype = KvDtype::kFp8;
  IndexDtype index_dtype = IndexDtype::kFp4;
  ActivationDtype activation_dtype = ActivationDtype::kNative;
  int64_t prefill_chunk = 0;  // tokens of a prompt that go through the model at once; 0: what suits the device
                              // (CPU 512, GPU 4096). By default results do not depend on it (docs/dev/numerics.md, 4)
  int64_t max_context = 0;    // 0: the model's own limit, beyond which kInvalidArgument
  // GPU, several ranks, ranks.invariant: prompts of every length are computed as decode rows are (StepItem); slower
  // prefill
  bool batch_invariant = false;
  PromptInputs prompt_inputs = PromptInputs::kByLength;
  // GPU: of one pass; more take several. A larger number is faster than several passes, and the bits of a row then
  // depend on whether its pass has more than kMaxDecodeRows
  int64_t max_decode_rows = kMaxDecodeRows;
  RankOptions ranks = {};
  AmxUse amx = AmxUse::kOff;  // CPU
  // GPU: routed experts whose scales allow it take 4.125 bits a weight, not 4.5; no bit of a result depends on it
  // (docs/dev/formats.md, 3.1)
  bool tight_experts = true;
  DraftOptions drafts = {};
  OffloadOptions offload = {};
  bool count_experts = false;  // Engine::expert_use has counts; they are taken anyway where experts are on the host
  bool reference_ops = false;  // run the plain reference implementation of every op (slow; for checking)
  ProgressFn progress = {};    // may be empty
  // called once, before memory for the model is taken; may be empty
  std::function<void(const MemoryPlan&)> on_plan = {};
};

// Where the time of Engine::Load went, in seconds, one after the other.
struct LoadTimes {
  double open = 0;      // the device
  double map = 0;       // config, headers, checks of names, shapes and scales
  double allocate = 0;  // memory for weights and staging
  double read = 0;      // files, with copying and packing behind the reads (synthetic weights: making them)
  double pack = 0;      // what of that was left when the last byte had been read
  int64_t bytes = 0;    // of the files, read; those that the page cache had included
  int64_t cached_bytes = 0;
  bool direct = false;  // past the page cache
};

struct ModelInfo {
  int64_t vocab_size;
  int64_t num_layers;
  int64_t hidden_size;
  int64_t max_context;
  TokenId bos_token_id;  // -1: none
  std::vector<TokenId> eos_token_ids;
  std::vector<std::string> unused_tensors;  // in the files but not part of the forward pass (mtp.*)
  int64_t weight_bytes;
  int64_t kv_fixed_bytes;               // KV of a session, before its first token: window rings and compressor states
  double kv_bytes_per_token;            // what it grows by, in whole pages: compressed rows and index keys
  Speculate drafter = Speculate::kOff;  // who drafts: what DraftOptions asks for, or kAuto has found
};

// Which rows of logits a step returns for a sequence.
enum class LogitRows : uint8_t {
  kNone,
  kLast,  // after the last token: [1, V]
  kAll,   // after every token: [tokens, V]
};

// On a GPU the kernels for a row follow from what it is, not from what shares its step: tokens of a prompt are computed
// in one of three ways, by how many of its tokens the request computes in all (up to 128, as decode rows are; up to
// 1,024; more: docs/dev/numerics.md, 3.1). Whoever cuts a prompt into several steps names that number in each of them;
// then the cuts change no bit.
struct StepItem {
  Session* session;
  std::span<const TokenId> tokens;  // at least one
  LogitRows rows = LogitRows::kLast;
  std::vector<float>* logits = nullptr;  // resized to rows * V; null with kNone
  // 0: decode rows: tokens that were drawn, or that stand for such; else rows of a prompt of which the request computes
  // so many tokens, those of this and of its other steps
  int64_t prompt_tokens = 0;
};

// Asked before each draw of an item: which tokens may be drawn, as Sampler::Sample takes it (a bit each; empty: all).
// Good until the item's next draw.
using AllowedFn = std::function<std::span<const uint32_t>()>;

// Asked before a step that would verify a draft: how many of `drafted`, the tokens guessed behind the item's next one,
// are worth verifying, as those behind can't be drawn. What AllowedFn says at their draws holds whatever this says.
using DraftCutFn = std::function<size_t(std::span<const TokenId> drafted)>;

// One sequence of Decode.
struct DecodeItem {
  Session* session = nullptr;
  Sampler* sampler = nullptr;          // parameters, random state and counts; one per item
  TokenId first = -1;                  // appended before the first draw
  int64_t max_tokens = 0;              // draws at most; at least 1
  std::vector<TokenId> stop_ids = {};  // a draw of one of these ends the item
  AllowedFn allowed = {};              // empty: always all
  DraftCutFn cut_draft = {};           // empty: all
  bool speculate = true;               // false: no drafts
  // called behind the tokens of a step that held drafts; may be empty
  std::function<void(const Verification&)> on_verification = {};
};
// Called with every draw, in order within an item. Return false to end that item.
using TokenFn = std::function<bool(size_t item, const SampledToken& token)>;

class Engine {
 public:
  // Errors: kNotFound (no such folder or file), kDataLoss (damaged or contradictory files), kUnsupported
  // (a device or format that this build lacks), kResourceExhausted, kCancelled, kInvalidArgument (options).
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const ModelInfo& info() const = 0;
  virtual const LoadTimes& load_times() const = 0;

  // An empty timeline. Its memory grows with use.
  virtual Result<std::unique_ptr<Session>> NewSession() = 0;

  // A timeline that goes on from a snapshot of this engine (snapshot.h), which stays as it is. What follows has the
  // bits that it would have had in the session that the snapshot was taken of. Errors: kInvalidArgument (a snapshot of
  // another engine), kResourceExhausted.
  virtual Result<std::unique_ptr<Session>> NewSession(const KvSnapshot& snapshot) = 0;

  // One line that files of this engine's snapshots carry: what computes their bits (weights, sizes, numerics, device
  // and the outcome of a few tokens). Another line, other bits. Computed when first asked for.
  virtual Result<std::string> SnapshotFingerprint() = 0;

  // A snapshot that KvSnapshot::Save has written. Errors, with one line that names the file: kNotFound, kDataLoss (cut
  // off, changed, or no snapshot at all), kUnsupported (a newer form; another fingerprint, whose bits would differ),
  // kResourceExhausted.
  Result<std::shared_ptr<const KvSnapshot>> LoadSnapshot(const std::string& path);

  // Its two halves. Any thread may read, beside the one that uses the engine, once SnapshotFingerprint has returned.
  virtual Result<std::shared_ptr<const SnapshotImage>> ReadSnapshot(const std::string& path) = 0;
  virtual Result<std::shared_ptr<const KvSnapshot>> LoadSnapshot(const SnapshotImage& image) = 0;

  // What such a file holds, from its head alone (same errors).
  virtual Result<SnapshotInfo> ReadSnapshotInfo(const std::string& path) = 0;

  // KV memory that sessions and snapshots hold now; what several share counts once.
  virtual int64_t kv_bytes() const = 0;

  // Memory for sequences that the engine's devices have free now, with what ended sequences left (0: unknown).
  virtual int64_t free_bytes() const = 0;

  // One step for several sessions of mixed lengths (a ragged batch): by default each gets exactly the logits that it
  // would get alone, bit for bit; which options change that says docs/dev/numerics.md, 4 (max_decode_rows, AMX for
  // prompts, experts on the CPU). A session may appear once. kInvalidArgument: an item with more tokens than its
  // prompt_tokens. On an error no session has changed.
  virtual Status Step(std::span<const StepItem> items) = 0;

  // Draws and appends tokens for several sessions until each has ended; every draw but an item's last is appended.
  // Draws are those of Step, as decode rows, and Sampler::Sample in turn, with drafts (DraftOptions) and
  // without. Errors as of Step and Sample; sessions keep what was appended.
  virtual Status Decode(std::span<const DecodeItem> items, const TokenFn& on_token) = 0;

  virtual DraftCounts draft_counts() const { return {}; }

  // OK until the engine can run no more steps (a GPU has failed, its ranks have lost each other): then every call that
  // needs the device returns this, until Restart. Of several ranks the line begins with `rank N` or `GPU N`, where one
  // is to blame.
  virtual Status health() const { return {}; }

  // Closes the device, opens it anew and loads the model again, as it does not recover by itself. The engine, its info
  // and its snapshots' fingerprint stay what they are. Sessions and snapshots, but not their images and files, lie in
  // the memory that is lost: they must be gone (kInvalidArgument). Errors as of Load, and kDataLoss where the files
  // hold another model by now: health() says so from then on, and Restart may be called again. `progress` hears of the
  // loading, as EngineOptions::progress does of the first, and may end it (kCancelled).
  virtual Status Restart(const ProgressFn& progress = {}) {
    (void)progress;
    return Unsupported("this engine cannot be restarted");
  }

  // Which experts were chosen since the engine was loaded, and what of them was read from the host.
  virtual Result<ExpertUse> expert_use() = 0;

  // Bytes that a decode step of `batch` sequences at `context` tokens reads at least: weights (of the experts that
  // uniform routing is expected to name), KV rows and index keys.
  virtual double StepBytes(int64_t batch, int64_t context) const = 0;

  // Bytes a second at which this device reads its memory, measured now.
  virtual Result<double> MeasureReadRate() = 0;
};

// Writes the weights of options.synthetic, the same values, as a checkpoint into the new folder `dir`: safetensors
// shards of at most 5 GB with their index, NVFP4 in ModelOpt's layout, config.json; no tokenizer. options.device makes
// the values. Shards that the disk of `dir` has no room for go to the new folder `overflow` (on another disk, or in
// memory) and are links in `dir`; "": there is none. Errors: kInvalidArgument (a folder exists), kNotFound (the folder
// above one does not), kResourceExhausted (the disks lack room, known before anything is written), kCancelled; nothing
// is left behind then.
Status WriteSyntheticCheckpoint(const EngineOptions& options, const std::string& dir, const std::string& overflow = "");

}  // namespace dsv4
