// The meaning of EngineOptions: checks and defaults shared by Engine::Load, Inspect and WriteSyntheticCheckpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "device/exchange.h"
#include "dsv4/engine.h"
#include "dsv4/status.h"
#include "model/model.h"

namespace dsv4 {

// kInvalidArgument if options contradict each other or the machine.
Status CheckEngineOptions(const EngineOptions& options);

int64_t PrefillChunk(const EngineOptions& options);  // the option, or the device's default
// The option, which OpenModelOf has checked, or the model's limit.
int64_t ContextLimit(const EngineOptions& options, const ModelFacts& facts);
// The minimum size of step buffers on a GPU, in tokens, even if the first step is smaller: at least some blocks of
// eight rows, so that the FP16 numbers of attention fit for chunks of any size (layers/attention.cc).
int64_t LeastStepTokens(const EngineOptions& options, int64_t max_context);
// The same for rows of logits, also on a CPU. A pass with more rows makes this many at a time.
int64_t MostStepRows(const EngineOptions& options);

NumericsModes ModesOf(const EngineOptions& options);

// All options that may change a row's bits: part of the fingerprint of snapshots.
std::string DescribeModes(const EngineOptions& options);

// The threads of one of `count` ranks. With one rank they are pinned if that was requested, or if the machine has
// several memory nodes: threads that move between nodes would find their rows on another node.
std::unique_ptr<ThreadPool> MakePool(const EngineOptions& options, int count = 1);

// The relation of the ranks' devices to each other.
struct RankPlaces {
  int count = 1;
  int sharing = 1;  // ranks in the memory of one device: all of them, or one
  ExchangeTransport transport = ExchangeTransport::kHost;
  int64_t free_bytes = 0;  // of the GPU with the least free memory
  int fullest = 0;         // number of that GPU

  int num_devices() const { return count / sharing; }
};
RankPlaces PlacesOf(const EngineOptions& options, std::span<const std::unique_ptr<Device>> devices);

// Opens the ranks' exchange. It has memory for all-reduces of `largest` values at once, up to a limit. Null for one
// rank. Probes the links of GPUs.
Result<std::unique_ptr<Exchange>> OpenExchange(const EngineOptions& options, const RankPlaces& places,
                                               std::span<const std::unique_ptr<Device>> devices, int64_t largest);

// Opens one device for each rank that options.device names.
Result<std::vector<std::unique_ptr<Device>>> OpenDevices(const EngineOptions& options);

// The draft module that the options request.
DraftModule DraftModuleOf(const EngineOptions& options);

// Reads and checks the model that the options name, and checks the options against it. Loads nothing.
Result<std::unique_ptr<ModelSource>> OpenModelOf(const EngineOptions& options, const Device& device);

}  // namespace dsv4
