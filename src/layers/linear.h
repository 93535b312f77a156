// y = x w^T with the input rounded as the activation mode says, when the weight is quantised.
#pragma once

#include "device/exec_context.h"
#include "dsv4/types.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

// x f32 [T, K], y f32 [T, N]; `scratch` f32 with at least T*K elements, used only when the mode rounds.
void QuantLinear(const ExecContext& ctx, ActivationDtype mode, const Tensor& x, const QuantTensor& w, const Tensor& y,
                 const Tensor& scratch);

// Whether the mode changes the input of a linear with this weight.
inline bool RoundsInput(ActivationDtype mode, const QuantTensor& w) {
  return w.quantised() && (mode == ActivationDtype::kFp8 || mode == ActivationDtype::kNvfp4);
}

}  // namespace dsv4
