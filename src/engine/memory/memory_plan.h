// The memory that a running model needs, computed before anything is allocated.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/planned_device.h"
#include "dsv4/engine.h"
#include "dsv4/inspect.h"
#include "dsv4/status.h"
#include "engine/setup/options.h"
#include "kv/layout.h"
#include "model/model.h"

namespace dsv4 {

// Bytes of KV state of one sequence.
struct KvBytes {
  double per_token = 0;  // compressed rows and index keys, which grow
  int64_t fixed = 0;     // window rings and compressor states
};
KvBytes KvFootprint(const KvSpec& spec);

struct PlanInputs {
  KvSpec kv;
  int64_t weight_bytes = 0;
  int64_t widened_bytes = 0;
  int64_t activation_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t loading_bytes = 0;    // in addition to the weights, before there are activations
  int64_t available_bytes = 0;  // 0: unknown; then everything fits
  int64_t max_context = 0;      // the model's or the user's limit
  int64_t collective_bytes = 0;
  int kv_copies = 1;  // ranks in the same memory, each with all rows
};
MemoryPlan MakeMemoryPlan(const PlanInputs& inputs);

// The limit of GPU memory for recorded steps (recordings.h). A layer takes some hundred KiB to a MiB of a recording.
inline constexpr int64_t kRecordingBytesOfALayer = int64_t{12} << 20;
// Memory of a GPU that is not the engine's to plan, but is taken after the plan: the driver loads the code of a kernel
// at its first launch (up to 40 MB, the kernels of the program), and rounds each allocation up to 2 MiB.
// Without this margin KV would have less memory than the plan promises, by an amount that depends on driver and GPU.
inline constexpr int64_t kUnplannedBytes = int64_t{64} << 20;
// Returns 0 if steps cannot be recorded: the host orders the ranks, or it waits for the experts that layers choose.
int64_t RecordingBytes(int64_t num_layers, const RankPlaces& places, bool waits_for_choices);
// Whether the host waits for these choices: for experts on the disk, and for experts in host memory that the CPU may
// compute. Both lists are by layer; empty: none.
inline bool WaitsForChoices(const EngineOptions& o, const std::vector<int64_t>& on_host,
                            const std::vector<int64_t>& on_disk) {
  return !on_disk.empty() || (o.offload.expert_compute != ExpertCompute::kGpu && !on_host.empty());
}

// Values of the largest collective that steps with these options may need.
int64_t LargestExchange(const EngineOptions& options, const ModelFacts& facts, int count);

// The plan for `model` with these options on `device`: the sum over the ranks that share the device. With several GPUs,
// `device` is any of them.
MemoryPlan PlanMemory(const EngineOptions& options, const ModelSource& model, const PlannedDevice& device,
                      const RankPlaces& places);
inline MemoryPlan PlanMemory(const EngineOptions& options, const ModelSource& model, const Device& device,
                             const RankPlaces& places) {
  return PlanMemory(options, model, PlannedDevice::Of(device), places);
}

// The device's name in errors. With several GPUs: the one with the least free memory.
std::string PlaceOf(const MemoryPlan& plan);

// Bytes of the device's memory for loading and then for a step, with `page_bytes` of KV; the larger of the two.
int64_t NeededBytes(const MemoryPlan& plan, int64_t page_bytes);
// Whether loading fits, and then a step of one prefill chunk for one sequence with one page, `page_bytes` of KV.
bool Fits(const MemoryPlan& plan, int64_t page_bytes);
// If it does not fit: kResourceExhausted, with all numbers and `remedy`.
Status CheckPlan(const MemoryPlan& plan, int64_t page_bytes, std::string_view remedy);

}  // namespace dsv4
