// Uploads weights from mapped files to a device's memory, in the layout of its kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/status.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/expert_placement.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// The bytes that UploadWeights allocates. num_slices: slices of the rank; `weights` is the first one.
PlacedBytes UploadedBytes(const Weights& weights, const ExpertPlacement& placement, int num_slices = 1);
// The bytes of one expert of every layer.
std::vector<int64_t> UploadedExpertBytes(const Weights& weights);

// The memory that loading needs in addition: pinned memory on the host, and buffers on the device.
PlacedBytes UploadStagingBytes(const Weights& weights, const ExpertPlacement& placement);

// Uploads weights. Matrices become tiles (ops/pack_weight/pack_weight.h), packed on the device. The embedding table,
// mHC mixes and F32 matrices keep their rows. Experts that `placement` keeps on the host are also packed on the device.
// Experts on the disk have formats and shapes only (disk_experts.h). Several threads read parts of `source`'s files
// (null: no files), past the page cache if that is faster. `progress(done, total)` is in bytes of the files; false
// stops with kCancelled. Fills `times` from `allocate` on (may be null). Errors: kResourceExhausted, kUnsupported (a
// layout that the device's kernels do not support), kDataLoss (a file that cannot be read), kInternal. The result does
// not need `host`.
//
// With several ranks (shard.h) each gets its own part: every byte of the files is read once and copied to all devices.
// fixed_cuts: as in Sharding; each rank's slices are then joined.
Result<std::vector<Weights>> UploadRanks(std::span<Device* const> devices, ThreadPool& pool, const Weights& host,
                                         const ExpertPlacement& placement, const TensorSource* source,
                                         const std::function<bool(int64_t done, int64_t total)>& progress,
                                         LoadTimes* times, int fixed_cuts = 0);
Result<Weights> UploadWeights(Device& device, ThreadPool& pool, const Weights& host, const ExpertPlacement& placement,
                              const TensorSource* source,
                              const std::function<bool(int64_t done, int64_t total)>& progress, LoadTimes* times);

}  // namespace dsv4::deepseek_v4
