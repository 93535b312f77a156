// Models of the released shapes with random weights, for measurements at full size.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/status.h"
#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/expert_placement.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// The released configurations (docs/dev/model.md). "nano" has the shape of the bundled model. `draft` adds the draft
// module that was released with the model: kMtp or kDspark. kAny and kNone add none.
Result<Config> SyntheticConfig(const SyntheticModel& model, DraftModule draft = DraftModule::kNone);

struct SyntheticBytes {
  PlacedBytes weights;
  int64_t making = 0;  // in addition on the device while they are made
};
// The bytes of SyntheticWeights on each of the ranks. tight: experts use tight tiles if they can
// (EngineOptions::tight_experts).
SyntheticBytes SyntheticWeightBytes(DeviceKind device, const Config& config, const SyntheticModel& model, bool tight,
                                    const Sharding& sharding, const ExpertPlacement& placement);
// The bytes of one expert of every layer, on one rank.
std::vector<int64_t> SyntheticExpertBytes(DeviceKind device, const Config& config, const SyntheticModel& model,
                                          bool tight, const Sharding& sharding);

// Weights in the layout of the device's kernels, generated there (ops/fill_weight/fill_weight.h). Every matrix has
// variance 1 / K, so that activations keep their magnitude through the layers. Router and mHC mixes are BF16 and F32.
// `config` is the whole model's. Each of several ranks (on GPUs) gets the slices of the same values, joined
// (JoinSlices).
Result<Weights> SyntheticWeights(Device& device, ThreadPool& pool, const Config& config, const SyntheticModel& model,
                                 bool tight, const ExpertPlacement& placement, const Sharding& sharding,
                                 const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace dsv4::deepseek_v4
