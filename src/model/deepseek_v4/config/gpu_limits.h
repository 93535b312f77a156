// Limits of the GPU kernels for models and matrices.
#pragma once

#include "dsv4/status.h"
#include "model/deepseek_v4/config/config.h"
#include "tensor/quant_tensor.h"

namespace dsv4::deepseek_v4 {

// kUnsupported if the config exceeds a limit; the message has the field, its value and the limit.
Status CheckGpuLimits(const Config& config);
// The same if a matrix of a file cannot be packed.
Status CheckBecomesTiles(const QuantTensor& m);

}  // namespace dsv4::deepseek_v4
