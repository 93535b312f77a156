// Which models and matrices the GPU's kernels take.
#pragma once

#include "dsv4/status.h"
#include "model/deepseek_v4/config/config.h"
#include "tensor/quant_tensor.h"

namespace dsv4::deepseek_v4 {

// kUnsupported, with the field, its value and the most that a GPU takes, where the config goes beyond it.
Status CheckGpuLimits(const Config& config);
// The same where a matrix of a file cannot be packed.
Status CheckBecomesTiles(const QuantTensor& m);

}  // namespace dsv4::deepseek_v4
