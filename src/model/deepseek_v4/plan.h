// What running a model takes in memory, before anything is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "dsv4/inspect.h"
#include "kv/layout.h"
#include "model/deepseek_v4/config.h"

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
  int64_t available_bytes = 0;  // 0: unknown, then everything fits
  int64_t max_context = 0;      // the model's or the user's limit
};
MemoryPlan MakeMemoryPlan(const PlanInputs& inputs);

// Memory that this process may still take: what the kernel calls available, and what the limits of its control groups
// leave (both versions; page cache counts as free). 0: unknown. `root` stands before /proc and /sys.
int64_t AvailableMemory(const std::string& root = "");

}  // namespace dsv4
