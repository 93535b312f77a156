// What running a model takes in memory, before anything is allocated.
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
  double per_token = 0;  // what grows: compressed rows and index keys
  int64_t fixed = 0;     // window rings and compressor states
};
KvBytes KvFootprint(const KvSpec& spec);

struct PlanInputs {
  KvSpec kv;
  int64_t weight_bytes = 0;
  int64_t widened_bytes = 0;
  int64_t activation_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t loading_bytes = 0;    // beside the weights, before there are activations
  int64_t available_bytes = 0;  // 0: unknown, then everything fits
  int64_t max_context = 0;      // the model's or the user's limit
  int64_t exchange_bytes = 0;
  int kv_copies = 1;  // ranks in the same memory, each with all rows
};
MemoryPlan MakeMemoryPlan(const PlanInputs& inputs);

// What recorded steps may take of a GPU's memory (recordings.h). A layer's part of one is some hundred KiB to a MiB.
inline constexpr int64_t kRecordingBytesOfALayer = int64_t{12} << 20;
// Steps whose ranks the host orders, and those in which it waits for what layers choose, cannot be recorded.
int64_t RecordingBytes(int64_t num_layers, const RankPlaces& places, bool waits_for_choices);
// Whether it does: for experts of the disk, and for those of the host that the CPU may compute (by layer; empty: none).
inline bool WaitsForChoices(const EngineOptions& o, const std::vector<int64_t>& on_host,
                            const std::vector<int64_t>& on_disk) {
  return !on_disk.empty() || (o.offload.expert_compute != ExpertCompute::kGpu && !on_host.empty());
}

// Values of the largest exchange between ranks that steps of these options may need.
int64_t LargestExchange(const EngineOptions& options, const ModelFacts& facts, int count);

// For `model`, with these options, on `device`: of the ranks that share it, together. Of several GPUs `device` is any.
MemoryPlan PlanMemory(const EngineOptions& options, const ModelSource& model, const PlannedDevice& device,
                      const RankPlaces& places);
inline MemoryPlan PlanMemory(const EngineOptions& options, const ModelSource& model, const Device& device,
                             const RankPlaces& places) {
  return PlanMemory(options, model, PlannedDevice::Of(device), places);
}

// What errors call the device: of several GPUs the one that has least free.
std::string PlaceOf(const MemoryPlan& plan);

// Of the device's memory, for loading, then for a step, with `page_bytes` of KV.
int64_t NeededBytes(const MemoryPlan& plan, int64_t page_bytes);
// Whether loading fits, and then a step of a prefill chunk for one sequence of one page, `page_bytes` of KV.
bool Fits(const MemoryPlan& plan, int64_t page_bytes);
// Where not: kResourceExhausted, with all numbers and `remedy`.
Status CheckPlan(const MemoryPlan& plan, int64_t page_bytes, std::string_view remedy);

}  // namespace dsv4
