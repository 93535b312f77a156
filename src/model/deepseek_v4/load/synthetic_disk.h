// A synthetic model as a checkpoint on disk, for tests and measurements of loading.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/thread_pool.h"
#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/status.h"

namespace dsv4::deepseek_v4 {

// Writes the weights of SyntheticWeights (same seed, same values) into the new folder `dir`. The files are safetensors
// shards in the order of the model, of at most `shard_bytes` each, model.safetensors.index.json and, last, config.json.
// Names are official; NVFP4 has ModelOpt's layout (weight, weight_scale, weight_scale_2). Values are computed on
// `device`. The free space on the disk is checked first. On an error, or if `progress` returns false (kCancelled), the
// folder is removed. Errors: kInvalidArgument (the folder exists), kResourceExhausted (disk or memory).
struct SyntheticDiskOptions {
  int64_t shard_bytes = 5'000'000'000;
  // a second new folder: for shards that do not fit `dir`, which then has links to them. "": none
  std::string overflow;
  int64_t dir_bytes = 0;  // limit for the shards in `dir`; 0: the free space of its disk
};
Status WriteSynthetic(Device& device, ThreadPool& pool, const SyntheticModel& model, const std::string& dir,
                      const std::function<bool(int64_t done, int64_t total)>& progress,
                      const SyntheticDiskOptions& options = {});

}  // namespace dsv4::deepseek_v4
