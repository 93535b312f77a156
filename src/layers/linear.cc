#include "layers/linear.h"

#include "ops/linear/linear.h"
#include "ops/round_activation/round_activation.h"

namespace dsv4 {

void QuantLinear(const ExecContext& ctx, ActivationDtype mode, const Tensor& x, const QuantTensor& w, const Tensor& y,
                 const Tensor& scratch) {
  Tensor input = x;
  if (RoundsInput(mode, w)) {
    DSV4_CHECK(scratch.num_elements() >= x.num_elements());
    input = {scratch.data, DType::kF32, x.shape};
    RoundActivation(ctx, {.x = x, .y = input, .mode = mode});
  }
  Linear(ctx, {.x = input, .w = w, .y = y});
}

}  // namespace dsv4
