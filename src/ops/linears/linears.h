// Several linears of one input: y_i[t, n] = sum_k x[t, k] * w_i[n, k]
// The weights may have different formats and numbers of rows, K is the same; every y_i is what linear gives for w_i to
// within the order of the sum, which depends on the regime, never on T. On a GPU it is one launch (docs/model.md: the projections that
// read the same normalised stream).
#pragma once

#include <array>

#include "dsv4/types.h"
#include "ops/query_blocks.h"
#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int kMaxLinears = 8;

struct LinearPart {
  QuantTensor w;  // [N_i, K], any format
  Tensor y;       // f32 [T, N_i]; not x, nor another part's
  QueryBlocks queries = {};  // instead of y; only where LinearTakesBlocks (linear.h)
};

struct LinearsArgs {
  Tensor x;  // f32 [T, K]
  std::array<LinearPart, kMaxLinears> parts;
  int count = 0;
  ActivationDtype activation = ActivationDtype::kNative;  // as in linear
  // Rows of x are RMS-normalised and multiplied by `norm` first, as rms_norm does; only where LinearsNormalise says so.
  Tensor norm = {};  // f32 [K], or none
  float norm_eps = 0;
  const uint8_t* x_blocks = nullptr;  // x as FP16 in blocks (ops/activation_blocks.cuh), for those of `parts` that take it; or null
};
// Whether a linear of this weight takes a norm along: the GPU's kernels of Regime::kDecode do.
bool LinearsNormalise(const ExecContext& ctx, const QuantTensor& w);
void Linears(const ExecContext& ctx, const LinearsArgs& args);
OpImplementations DescribeLinears(const ExecContext& ctx);

}  // namespace dsv4
