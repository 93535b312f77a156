// What the seam of models (model/model.h) asks of DeepSeek-V4.
#pragma once

#include <memory>
#include <string>

#include "model/deepseek_v4/load/synthetic_disk.h"
#include "model/model.h"

namespace dsv4::deepseek_v4 {

// As OpenModel and OpenSyntheticModel.
Result<std::unique_ptr<ModelSource>> OpenCheckpoint(const std::string& dir, const NumericsModes& modes,
                                                    const Device& device, DraftModule draft, bool tight_experts);
Result<std::unique_ptr<ModelSource>> OpenSynthetic(const SyntheticModel& model, const NumericsModes& modes,
                                                   const Device& device, DraftModule draft, bool tight_experts);

}  // namespace dsv4::deepseek_v4
