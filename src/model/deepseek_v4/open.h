// DeepSeek-V4's functions for the model interface (model/model.h).
#pragma once

#include <memory>
#include <string>

#include "model/deepseek_v4/load/synthetic_disk.h"
#include "model/model.h"

namespace dsv4::deepseek_v4 {

// OpenModel and OpenSyntheticModel for this family.
Result<std::unique_ptr<ModelSource>> OpenCheckpoint(const std::string& dir, const NumericsModes& modes,
                                                    const Device& device, DraftModule draft, bool tight_experts);
Result<std::unique_ptr<ModelSource>> OpenSynthetic(const SyntheticModel& model, const NumericsModes& modes,
                                                   const Device& device, DraftModule draft, bool tight_experts);

}  // namespace dsv4::deepseek_v4
