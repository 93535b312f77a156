// Models of the released shapes with random weights: for measurements at full size.
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

// The released configurations (docs/dev/model.md, section 1); "nano" has the shape of the bundled model. With the draft
// module that was released with them: kMtp, kDspark; kAny and kNone are none.
Result<Config> SyntheticConfig(const SyntheticModel& model, DraftModule draft = DraftModule::kNone);

struct SyntheticBytes {
  PlacedBytes weights;
  int64_t making = 0;  // on the device, beside them, while they are made
};
// Bytes that SyntheticWeights takes, of each of the ranks.
// tight: experts in tight tiles where they can be (EngineOptions::tight_experts).
SyntheticBytes SyntheticWeightBytes(DeviceKind device, const Config& config, const SyntheticModel& model, bool tight,
                                    const Sharding& sharding, const ExpertPlacement& placement);
// Of one expert of every layer, on one rank.
std::vector<int64_t> SyntheticExpertBytes(DeviceKind device, const Config& config, const SyntheticModel& model,
                                          bool tight, const Sharding& sharding);

// Weights in the layout that the device's kernels want, generated there (ops/fill_weight/fill_weight.h): every matrix
// with variance 1 / K, so that activations keep their size through the layers; router and mHC mixes in BF16 and F32.
// `config` is the whole model's; of several ranks (on GPUs) it is the slices of the same values that are kept, those of
// a rank joined (JoinSlices).
Result<Weights> SyntheticWeights(Device& device, ThreadPool& pool, const Config& config, const SyntheticModel& model,
                                 bool tight, const ExpertPlacement& placement, const Sharding& sharding,
                                 const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace dsv4::deepseek_v4
