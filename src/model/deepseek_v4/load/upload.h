// From weights in mapped files to weights in a device's memory, in the layout that its kernels want.
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

// Bytes that UploadWeights takes, once it is done. num_slices: a rank of so many takes, whose first `weights` are.
PlacedBytes UploadedBytes(const Weights& weights, const ExpertPlacement& placement, int num_slices = 1);
// Of one expert of every layer.
std::vector<int64_t> UploadedExpertBytes(const Weights& weights);

// What loading takes besides: pinned memory of the host, and what lies on the device.
PlacedBytes UploadStagingBytes(const Weights& weights, const ExpertPlacement& placement);

// Matrices become tiles (ops/pack_weight/pack_weight.h), packed on the device; embedding table, mHC mixes and F32
// matrices keep their rows. Experts that `placement` keeps on the host are packed on the device, too; those on the disk
// have formats and shapes only (disk_experts.h). Parts of
// `source`'s files (null: none) are read by several threads, past the page cache where that helps. `progress(done,
// total)` in bytes of the files; false stops with kCancelled. Fills `times` from `allocate` on (may be null). Errors:
// kResourceExhausted, kUnsupported (a layout that the device's kernels do not take), kDataLoss (a file that cannot be
// read), kInternal. The result does not need `host`.
//
// Of several ranks (shard.h) each gets what is its own: every byte of the files is read once and copied to all devices.
// fixed_cuts: as of Sharding; each rank's slices are joined then.
Result<std::vector<Weights>> UploadRanks(std::span<Device* const> devices, ThreadPool& pool, const Weights& host,
                                         const ExpertPlacement& placement, const TensorSource* source,
                                         const std::function<bool(int64_t done, int64_t total)>& progress,
                                         LoadTimes* times, int fixed_cuts = 0);
Result<Weights> UploadWeights(Device& device, ThreadPool& pool, const Weights& host, const ExpertPlacement& placement,
                              const TensorSource* source,
                              const std::function<bool(int64_t done, int64_t total)>& progress, LoadTimes* times);

}  // namespace dsv4::deepseek_v4
