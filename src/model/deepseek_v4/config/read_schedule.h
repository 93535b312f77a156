// The kinds of layers in config.json: attention (compress_ratios, layer_types) and router (num_hash_layers,
// mlp_layer_types).
#pragma once

#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/config/config_reader.h"

namespace dsv4::deepseek_v4 {

// Reads the official list, transformers' layer_types, or both, which must agree; checks compress_rates. Entries after
// the last layer belong to draft modules. There is no default: transformers' default matches no released model.
void ReadSchedule(ConfigReader& in, Config& c);

// Reads num_hash_layers, transformers' mlp_layer_types ("hash_moe" in the first layers, then "moe"), or both, which
// must agree.
void ReadHashLayers(ConfigReader& in, Config& c);

}  // namespace dsv4::deepseek_v4
