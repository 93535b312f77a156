// What the CPU's kernels keep between calls.
#pragma once

#include <cstdint>

#include "model/deepseek_v4/config/config.h"

namespace dsv4::deepseek_v4 {

// Once a sequence has `max_context` tokens: index scores of each thread, and the cached rows that are decoded once for
// all tokens of a step.
int64_t HostScratchBytes(const Config& config, int64_t max_context, int num_threads);

}  // namespace dsv4::deepseek_v4
