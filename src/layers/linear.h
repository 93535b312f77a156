// y = x w^T with the input rounded as the activation mode says, when the weight is quantised.
#pragma once

#include <initializer_list>

#include "device/exec_context.h"
#include "dsv4/types.h"
#include "ops/linear/linear.h"
#include "ops/query_blocks.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

// x f32 [T, K]; besides, as `blocks`, what linears that take it read instead (linear.h: LinearTakesBlocks). A tensor is one
// without.
struct LinearInput {
  Tensor x;
  const uint8_t* blocks = nullptr;
  LinearInput(const Tensor& tensor, const uint8_t* as_blocks = nullptr) : x(tensor), blocks(as_blocks) {}  // NOLINT: implicit
};

// y f32 [T, N]; `scratch` f32 with at least T*K elements, used only when the mode rounds.
void QuantLinear(const ExecContext& ctx, ActivationDtype mode, const LinearInput& x, const QuantTensor& w, const Tensor& y,
                 const Tensor& scratch);

// One of several linears of the same input.
struct LinearCall {
  QuantTensor w;
  Tensor y;
  bool rounds = true;  // false: the input stays unrounded in every mode
  QueryBlocks queries = {};  // instead of y, where ReadsBlocks (below)
};

// All of them, in as few passes as the mode allows; calls without a weight are left out. At most kMaxLinears.
void QuantLinears(const ExecContext& ctx, ActivationDtype mode, const LinearInput& x, std::initializer_list<LinearCall> calls,
                  const Tensor& scratch);

// The same of x's rows RMS-normalised and multiplied by `norm` (rms_norm.h). x is scratch: it may hold either afterwards.
void NormedQuantLinears(const ExecContext& ctx, ActivationDtype mode, const Tensor& x, const Tensor& norm, float norm_eps,
                        std::initializer_list<LinearCall> calls, const Tensor& scratch);

// Whether the mode changes the input of a linear with this weight.
inline bool RoundsInput(ActivationDtype mode, const QuantTensor& w) {
  return RoundsToIntegers(mode, w.format) ||
         (w.quantised() && (mode == ActivationDtype::kFp8 || mode == ActivationDtype::kNvfp4));
}

// Whether a linear of this weight reads its input as blocks in this mode.
inline bool ReadsBlocks(const ExecContext& ctx, ActivationDtype mode, const QuantTensor& w) {
  return !RoundsInput(mode, w) && LinearTakesBlocks(ctx, w);
}

}  // namespace dsv4
