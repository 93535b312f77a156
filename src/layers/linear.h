// y = x w^T with the input rounded as the activation mode says, when the weight is quantised.
#pragma once

#include <initializer_list>

#include "device/exec_context.h"
#include "dsv4/types.h"
#include "layers/activation.h"
#include "ops/linear/linear.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

// How a linear takes its input.
enum class Input : uint8_t {
  kAsIs,     // the floats, or the blocks where it takes them
  kRounded,  // the floats, rounded as the mode says
  kCodes,    // the same as codes, multiplied as they are (ops/linear/block_scaled/); kRounded where that has no product
};
// Of a weight that is not exempt from the mode.
Input InputOf(const ExecContext& ctx, ActivationDtype mode, const QuantTensor& w);

// Whether the mode changes the input of a linear with this weight.
inline bool RoundsInput(ActivationDtype mode, const QuantTensor& w) {
  return RoundsToIntegers(mode, w.format) ||
         (w.quantised() && (mode == ActivationDtype::kFp8 || mode == ActivationDtype::kNvfp4));
}

// A matrix that reads the input; several may.
struct LinearCall {
  QuantTensor w;
  Input input = Input::kAsIs;
  Tensor y;                     // f32 [T, N]
  QueryBlocks queries = {};     // instead of y, where the plan says so
  int64_t push_site = kNoSite;  // y besides to the other ranks (linear_parts.h), where the plan says so
};

// All of them, in as few passes as the mode allows; calls without a weight are left out. At most kMaxLinearParts.
// `scratch` has room for x as floats, used only when the mode rounds.
void QuantLinear(const ExecContext& ctx, ActivationDtype mode, const Activation& x,
                 std::initializer_list<LinearCall> calls, const Room& scratch);

// The same of x's rows RMS-normalised and multiplied by `norm` (rms_norm.h): by the linears' launch where `along`. x is
// scratch: it may hold either afterwards.
void NormedQuantLinear(const ExecContext& ctx, ActivationDtype mode, const Tensor& x, const Tensor& norm,
                       float norm_eps, bool along, std::initializer_list<LinearCall> calls, const Room& scratch);

}  // namespace dsv4
