// What reading an expert of the host's memory over the link takes, and computing it on the CPU: measured once, for
// ExpertCompute::kAuto.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "device/device.h"
#include "layers/expert_share.h"
#include "model/deepseek_v4/schema/expert_placement.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// Per byte of an expert, from some of those that `placement` has on the host, of which there is one at least.
// expert_bytes: of one expert of every layer. Takes some hundredths of a second; a place of the device's memory
// meanwhile. False: there is none.
[[nodiscard]] bool MeasureExperts(Device& device, ThreadPool* pool, const Weights& weights,
                                  const ExpertPlacement& placement, std::span<const int64_t> expert_bytes,
                                  ExpertTimes* per_byte);

}  // namespace dsv4::deepseek_v4
