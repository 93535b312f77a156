// The two frequency tables of the model (docs/dev/model.md).
#pragma once

#include <vector>

#include "model/deepseek_v4/config/config.h"

namespace dsv4::deepseek_v4 {

// f_i = rope_theta^(-2i/Dr), i < Dr/2: for layers of ratio 0.
std::vector<float> PlainRopeFrequencies(const Config& config);

// compress_rope_theta with YaRN, applied at every length: for all other layers, and everything in them.
std::vector<float> CompressRopeFrequencies(const Config& config);

}  // namespace dsv4::deepseek_v4
