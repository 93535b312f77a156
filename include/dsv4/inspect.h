// What a checkpoint holds and what running it takes, without loading the weights.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/status.h"

namespace dsv4 {

struct FormatSummary {
  std::string format;   // "NVFP4", "FP8-128x128", "BF16", ...
  int64_t num_tensors;  // weight matrices or vectors, their scales not counted
  int64_t num_parameters;
  int64_t bytes;  // scales included
};

// Memory in bytes, for the KV and index dtypes of the options.
struct MemoryPlan {
  int64_t weight_bytes;           // mapped from the files; on a GPU, packed for its kernels
  int64_t widened_bytes;          // small vectors kept as f32
  double kv_bytes_per_1k_tokens;  // what grows, for 1,000 tokens: compressed rows and index keys
  int64_t kv_fixed_bytes;         // per sequence: window rings and compressor states
  int64_t activation_bytes;       // for one prefill chunk; on a GPU with recorded decode steps
  int64_t scratch_bytes;          // what ops use while they run; on the CPU at max_context tokens
  int64_t loading_bytes;          // on a GPU, while weights load: what copies and packing go through
  int64_t available_bytes;        // memory that this machine, or the GPU, has free now (0: unknown)
  int64_t max_context;            // the model's limit, or the option's
  int64_t max_context_that_fits;  // for one sequence, at most max_context
  int64_t host_staging_bytes;     // on a GPU, while weights load: pinned memory of the host
  std::string device;             // "CPU (...)", "NVIDIA H200, 132 SMs"
  int gpu = 0;                    // of several GPUs the one that has least free, by its number
  int ranks = 1;                  // that share this memory; the numbers above are of all of them
  int devices = 1;                // that have such a plan each
  int slices = 0;                 // of every layer, on all ranks together (RankOptions::invariant); 0: not so
  int64_t exchange_bytes = 0;     // on a GPU: what other ranks write into
  int64_t experts = 0;            // of all layers
  std::vector<int64_t> experts_on_host = {};  // by layer, in the host's memory (docs/offload.md); empty: none
  int64_t host_expert_bytes = 0;              // that they take there, of all devices together
  int64_t host_embedding_bytes = 0;           // likewise, the embedding table; 0: it is on the devices
  double host_bytes_per_token = 0;            // that a token is expected to read there through one device's link
  int64_t host_available_bytes = 0;           // memory that the machine has free now (0: unknown), or the option's
  std::vector<int64_t> experts_on_disk = {};  // by layer, on a GPU's machine, whose host has no room for them either
  // What is read from the disk whenever it is needed: these experts, of all devices together; on a CPU, of the files'
  // weights what memory does not hold.
  int64_t disk_bytes = 0;
  double disk_bytes_per_token = 0;  // that a token is expected to read there
  double disk_rate = 0;             // bytes a second, measured when the model loads; 0: not measured

  // On a CPU: what memory does not hold of mapped weights is read again, so any context has room.
  bool weights_give_way() const { return disk_bytes > 0 && experts_on_disk.empty(); }
};

// Bytes a second at which kernels read host memory over PCIe 5 x16, few of their blocks at a time (docs/offload.md).
inline constexpr double kHostLinkRate = 42e9;

struct OpChoice {
  std::string op;
  std::string chosen;                   // implementation that will run
  std::vector<std::string> candidates;  // in order of preference
};

// Who takes an op of the forward pass, in the order in which a layer runs them.
struct PlannedOp {
  std::string op;      // "hc_bridge (attention)", "q_a"
  std::string layers;  // "all", "CSA", "0-1, 4"
  std::string steps;   // "all", "decode of 1 row", "prompt, long prompt"
  std::string runs;    // kernels, numbers of an input, format, what is one launch: "TileLinearKernel, 2 x BF16; NVFP4"
};

// What GPUs with so much memory would hold, with no other program on them: computed from sizes, nothing is measured.
struct CardPlan {
  std::string name;        // whose rates are assumed: "H100"
  int64_t gigabytes = 0;   // of each, as it is sold
  int count = 1;           // a rank each
  bool fits = false;       // all but the routed experts does
  double resident = 0;     // share of the experts' bytes that the GPUs hold
  int64_t host_bytes = 0;  // the rest, in the host's memory; of all ranks
  // of one sequence, experts chosen alike: extrapolated (docs/offload.md); 0: it does not fit
  double tokens_per_s = 0;
};

struct ModelDescription {
  ModelInfo info;
  std::vector<std::pair<std::string, std::string>> config;  // field, value
  std::vector<FormatSummary> formats;
  std::vector<std::string> files;
  MemoryPlan plan;
  std::vector<OpChoice> ops;       // every op of the library
  std::vector<PlannedOp> forward;  // the forward pass on this device
  std::vector<CardPlan> cards;     // for common sizes of GPUs
};

// Reads and checks config and tensor headers as Engine::Load does (same errors).
Result<ModelDescription> Inspect(const EngineOptions& options);

}  // namespace dsv4
