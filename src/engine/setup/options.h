// What EngineOptions mean: checks and defaults that Engine::Load, Inspect and WriteSyntheticCheckpoint share.
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

// kInvalidArgument where options contradict each other or the machine.
Status CheckEngineOptions(const EngineOptions& options);

int64_t PrefillChunk(const EngineOptions& options);  // the option, or what suits the device
// The option, which OpenModelOf has checked, or the model's own.
int64_t ContextLimit(const EngineOptions& options, const ModelFacts& facts);
// What the buffers of steps are made for on a GPU, however small the first step is: some blocks of eight rows at least,
// so that what attention keeps as FP16 numbers has room in chunks of any size (layers/attention.cc).
int64_t LeastStepTokens(const EngineOptions& options, int64_t max_context);
// The same for rows of logits, on a CPU too. A pass that has more makes so many at a time.
int64_t MostStepRows(const EngineOptions& options);

NumericsModes ModesOf(const EngineOptions& options);

// Everything among the options that may change a row's bits: part of the fingerprint of snapshots.
std::string DescribeModes(const EngineOptions& options);

// One of `count` ranks' threads. One rank's are pinned where that was asked for, or where threads that wander would
// find their rows on another node.
std::unique_ptr<ThreadPool> MakePool(const EngineOptions& options, int count = 1);

// What the ranks' devices are to each other.
struct RankPlaces {
  int count = 1;
  int sharing = 1;  // ranks that one device's memory holds: all of them, or one
  ExchangeTransport transport = ExchangeTransport::kHost;
  int64_t free_bytes = 0;  // of the GPU that has least
  int fullest = 0;         // its number

  int num_devices() const { return count / sharing; }
};
RankPlaces PlacesOf(const EngineOptions& options, std::span<const std::unique_ptr<Device>> devices);

// The ranks' exchange, with room for sums of `largest` values at once where that is not too much; null for one rank.
// GPUs' links are probed.
Result<std::unique_ptr<Exchange>> OpenExchange(const EngineOptions& options, const RankPlaces& places,
                                               std::span<const std::unique_ptr<Device>> devices, int64_t largest);

// A device for each rank that options.device names.
Result<std::vector<std::unique_ptr<Device>>> OpenDevices(const EngineOptions& options);

// The draft module that they ask for.
DraftModule DraftModuleOf(const EngineOptions& options);

// The model that the options name, read and checked, as is what they ask of it, nothing loaded.
Result<std::unique_ptr<ModelSource>> OpenModelOf(const EngineOptions& options, const Device& device);

}  // namespace dsv4
