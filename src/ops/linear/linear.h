// y_i[t, g, n] = sum_k x[t, g, k] * w_i[g*N_i + n, k]      for groups g < G; G = 1 is the plain linear y = x w^T
// Several matrices may share x. Their formats and numbers of rows may differ, K is the same. On a GPU they are one
// launch. Each y_i equals the result for its matrix alone: bit for bit on a CPU, up to the order of the sum on a GPU.
// Weights are decoded exactly; products and sums are float32; the global scale multiplies the finished sum. Rows are
// independent, and each y[t, g, n] is summed in one fixed order. Its bits depend on the regime (exec_context.h), never
// on T or on the number of threads.
// `activation` kInt8, kInt16 and kInt24 first round x as RoundActivation does, each group separately, if the weight is
// MXFP4 or NVFP4. The products within a block of the weight are then integers, and their sum is exact. Other modes have
// no effect here.
// The grouped form is the output projection o_a (docs/dev/model.md). docs/dev/kernels/linear.md lists the kernels and
// their inputs.
#pragma once

#include <span>
#include <string>

#include "dsv4/types.h"
#include "ops/linear/linear_parts.h"
#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxColumnsOnGpu = 131072, kMaxRowsOnGpu = 16 * 65535;  // K; N of matrices that share x

struct LinearArgs {
  Tensor x;           // f32 [T, G*K]
  LinearParts parts;  // at least one; exactly one if there are several groups
  int64_t groups = 1;
  ActivationDtype activation = ActivationDtype::kNative;
  // x as FP16 in blocks (ops/activation_blocks.cuh), for the matrices with LinearTakesBlocks. They do not read x, whose
  // data may then be null; its shape is needed.
  const uint8_t* x_blocks = nullptr;
  // The op first RMS-normalises the rows of x and multiplies them by `norm`, as rms_norm does. Only if LinearNormalises
  // holds for every matrix.
  Tensor norm = {};  // f32 [K], or none
  float norm_eps = 0;
};
// Whether linear and experts round the inputs of such a weight to integers.
constexpr bool RoundsToIntegers(ActivationDtype activation, WeightFormat w) {
  return IsInteger(activation) && InfoOf(w).packed();
}
void Linear(const ExecContext& ctx, const LinearArgs& args);

// Whether a linear of this weight accepts x_blocks in this context, and whether it can write y_blocks (then it also
// accepts x_blocks). The GPU's kernels do in Regime::kLongPrompt, where an input is one FP16 number
// (docs/dev/numerics.md, 3.1). Other kernels would round x a second time.
bool LinearTakesBlocks(const ExecContext& ctx, const QuantTensor& w);
bool LinearWritesBlocks(const ExecContext& ctx, const QuantTensor& w, int64_t groups);
// Whether it can apply `norm`: the GPU's kernels of Regime::kDecode can.
bool LinearNormalises(const ExecContext& ctx, const QuantTensor& w);

// Whether its kernel can send a rank's partial of y to the other ranks while it computes it: for a few rows, between
// GPUs with transport kWords. A separate op can send only after all of y is computed.
bool LinearPushes(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w);

// The GPU kernels for a weight: a function of the regime and the weight, never of T.
enum class LinearKernels : uint8_t {
  kRows,    // F32LinearKernel: F32 weights in the file's layout (rows/)
  kTiles,   // TileLinearKernel, or OneTokenKernel if it fits: packed weights, read once for a few rows (tile/);
            // on Hopper WideLinearKernel for 17 rows or more (wide/), with the same bits
  kPrompt,  // LinearKernel: packed weights, decoded for wgmma (wgmma/)
};
LinearKernels GpuLinearKernels(const ExecContext& ctx, const QuantTensor& w);
int GpuInputNumbers(const ExecContext& ctx, const QuantTensor& w);  // the terms of an input of kPrompt
// Names the implementation for `w`, one of the matrices of a call, on this device, and the terms of an input: "avx512",
// "LinearKernel, 2 x FP16".
std::string LinearImplementation(const ExecContext& ctx, const QuantTensor& w, std::span<const QuantTensor> of_call,
                                 int64_t groups, int64_t num_tokens);
OpImplementations DescribeLinear(const ExecContext& ctx);
OpWork WorkOf(const LinearArgs& args);

}  // namespace dsv4
