// What running a model takes, from its config alone.
#pragma once

#include <cstdint>

#include "dsv4/types.h"
#include "kv/layout.h"
#include "model/deepseek_v4/config.h"

namespace dsv4 {

// The KV state that the model needs, as src/kv lays it out.
KvSpec MakeKvSpec(const Config& config, KvDtype kv_dtype, IndexDtype index_dtype);

// Bytes of KV state of one sequence.
struct KvBytes {
  double per_token = 0;  // what grows: compressed rows and index keys
  int64_t fixed = 0;     // window rings and compressor states
};
KvBytes KvFootprint(const KvSpec& spec);

// Bytes of the buffers of a step of `tokens` tokens: the f32 intermediates that are alive at once, of the widest
// layer. An estimate.
int64_t ActivationEstimate(const Config& config, int64_t tokens);

}  // namespace dsv4
