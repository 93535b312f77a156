// The fields of RoPE and YaRN in config.json: official (rope_scaling), of the release's own code, and transformers'
// (rope_parameters, nested or flat).
#pragma once

#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/config/config_reader.h"

namespace dsv4::deepseek_v4 {

// Reads and checks them, after head_dim. Factors of attention, rope types and unknown fields that would need another
// computation are errors.
void ReadRope(ConfigReader& in, Config& c);

}  // namespace dsv4::deepseek_v4
