// A synthetic model as a checkpoint on disk: for tests and measurements of loading.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/thread_pool.h"
#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/status.h"

namespace dsv4::deepseek_v4 {

// Writes the weights of SyntheticWeights (same seed, same values) into the new folder `dir`: safetensors shards of at
// most `shard_bytes` in the order of the model, model.safetensors.index.json and, last, config.json. Official names;
// NVFP4 in ModelOpt's layout (weight, weight_scale, weight_scale_2). Values are made on `device`. Room on the disk is
// checked first. On an error, and when `progress` returns false (kCancelled), the folder is removed. Errors:
// kInvalidArgument (the folder exists), kResourceExhausted (disk or memory).
struct SyntheticDiskOptions {
  int64_t shard_bytes = 5'000'000'000;
  std::string overflow;   // a second new folder: shards that `dir` has no room for, as links in `dir`. "": none
  int64_t dir_bytes = 0;  // what shards may take in `dir`; 0: what its disk has free
};
Status WriteSynthetic(Device& device, ThreadPool& pool, const SyntheticModel& model, const std::string& dir,
                      const std::function<bool(int64_t done, int64_t total)>& progress,
                      const SyntheticDiskOptions& options = {});

}  // namespace dsv4::deepseek_v4
