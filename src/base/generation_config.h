// generation_config.json, which a model's author writes next to config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/status.h"

namespace dsv4 {

// Fields that are absent, null or of another type are not set.
struct GenerationConfig {
  std::optional<double> temperature, top_k, top_p, min_p, repetition_penalty;
  std::vector<int64_t> eos_token_ids;
};

// Reads DIR/generation_config.json. A folder without the file has no fields. Error: kDataLoss (not a JSON object), and
// any error of reading it.
Result<GenerationConfig> ReadGenerationConfig(const std::string& model_dir);

}  // namespace dsv4
