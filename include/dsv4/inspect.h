// Describes a checkpoint and the memory that it needs, without loading the weights.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/export.h"
#include "dsv4/status.h"

namespace dsv4 {

struct FormatSummary {
  std::string format;   // "NVFP4", "FP8-128x128", "BF16", ...
  int64_t num_tensors;  // weight matrices and vectors, without their scales
  int64_t num_parameters;
  int64_t bytes;  // with scales
};

// Planned memory in bytes, for the KV and index dtypes of the options. With several GPUs, the plan of one GPU.
struct MemoryPlan {
  int64_t weight_bytes;           // CPU: mapped from the files; GPU: packed for its kernels
  int64_t widened_bytes;          // small vectors stored as f32
  double kv_bytes_per_1k_tokens;  // KV that grows, per 1,000 tokens: compressed rows and index keys
  int64_t kv_fixed_bytes;         // KV per sequence: window rings and compressor states
  int64_t activation_bytes;       // for one prefill chunk; on a GPU with CUDA graphs and 64 MiB for the driver
  int64_t scratch_bytes;          // used by ops while they run; on a CPU for max_context tokens
  int64_t loading_bytes;          // GPU: buffers for copying and packing while weights load
  int64_t available_bytes;        // free memory of this machine, or of the GPU; 0: unknown
  int64_t max_context;            // tokens; the model's limit, or the option's
  int64_t max_context_that_fits;  // tokens, for one sequence; at most max_context
  int64_t host_staging_bytes;     // GPU: pinned host memory while weights load
  std::string device;             // "CPU (...)", "NVIDIA H200, 132 SMs"
  int gpu = 0;                    // number of the GPU with the least free memory
  int ranks = 1;                  // ranks that share the device; the numbers above are totals of these ranks
  int devices = 1;                // devices; each has a plan like this one
  int slices = 0;                 // slices of every layer on all ranks together (RankOptions::invariant); 0: off
  int64_t collective_bytes = 0;   // GPU: buffers that other ranks write to
  int64_t experts = 0;            // number of experts in all layers
  std::vector<int64_t> experts_on_host = {};  // experts in host memory, by layer (docs/offload.md); empty: none
  int64_t host_expert_bytes = 0;              // host memory of these experts, for all devices together
  int64_t host_embedding_bytes = 0;           // host memory of the embedding table; 0: it is in device memory
  double host_bytes_per_token = 0;            // expected reads of a token from host memory over the link of one device
  int64_t host_available_bytes = 0;           // free host memory (0: unknown), or the limit of the option
  std::vector<int64_t> experts_on_disk = {};  // GPU: experts that do not fit in host memory either, by layer
  // Weights that are read from the disk whenever they are needed. GPU: experts_on_disk, for all devices together. CPU:
  // the weights of the files that do not fit in memory.
  int64_t disk_bytes = 0;
  double disk_bytes_per_token = 0;  // expected reads of a token from the disk
  double disk_rate = 0;             // bytes per second, measured when the model loads; 0: not measured

  // Returns true if, on a CPU, the weights do not fit in memory. The system then reads evicted pages of the mapped
  // files again, so that any context fits.
  bool weights_are_paged() const { return disk_bytes > 0 && experts_on_disk.empty(); }
};

// Bytes per second at which kernels with few blocks read host memory over PCIe 5 x16 (docs/offload.md).
inline constexpr double kHostLinkRate = 42e9;

struct OpChoice {
  std::string op;
  std::string chosen;                   // the implementation that runs
  std::vector<std::string> candidates;  // in order of preference
};

// An op of the forward pass and its implementation. ModelDescription lists them in the order in which a layer runs
// them.
struct PlannedOp {
  std::string op;      // "hc_bridge (attention)", "q_a"
  std::string layers;  // "all", "CSA", "0-1, 4"
  std::string steps;   // "all", "decode of 1 row", "prompt, long prompt"
  std::string runs;    // kernels, terms of an input, format, shared launches: "TileLinearKernel, 2 x BF16; NVFP4"
};

// Plan for GPUs of a given memory size that run no other program. Computed from sizes; nothing is measured.
struct CardPlan {
  std::string name;        // GPU whose rates are assumed: "H100"
  int64_t gigabytes = 0;   // nominal memory of each GPU
  int count = 1;           // GPUs; one rank on each
  bool fits = false;       // all weights except the routed experts fit
  double resident = 0;     // share of the experts' bytes in GPU memory, 0 to 1
  int64_t host_bytes = 0;  // bytes of the other experts, in host memory, for all ranks
  // Extrapolated rate of one sequence with uniform routing (docs/offload.md); 0: the model does not fit.
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
  std::vector<CardPlan> cards;     // common GPU sizes
};

// Reads and checks the config and the tensor headers. Same errors as Engine::Load.
DSV4_API Result<ModelDescription> Inspect(const EngineOptions& options);

}  // namespace dsv4
