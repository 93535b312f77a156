// For builds without CUDA.
#include "ops/linear/block_scaled/block_scaled.h"

namespace dsv4 {

bool BlockScaledLinear(const ExecContext&, const Tensor&, const QuantTensor&, const Tensor&) { return false; }

}  // namespace dsv4
