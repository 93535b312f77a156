// y_i[t, g, n] = sum_k x[t, g, k] * w_i[g*N_i + n, k]      for groups g < G; G = 1 is the plain linear y = x w^T
// Several matrices may share x: their formats and numbers of rows differ, K is the same. On a GPU they are one launch;
// each y_i is what its matrix alone gives, to the bit on a CPU, on a GPU to within the order of the sum.
// Weights are decoded exactly; products and sums in float32; the global scale multiplies the finished sum. Rows are
// independent and each y[t, g, n] is summed in one fixed order: its bits depend on the regime (exec_context.h), never
// on T or on the thread count.
// `activation` kInt8, kInt16 or kInt24 first rounds x as RoundActivation does, each group by itself, when the weight is
// MXFP4 or NVFP4: the products within a block of the weight are then integers and their sum is exact. Other modes
// change nothing here.
// The grouped form is the output projection o_a (docs/dev/model.md). Which family of kernels takes what:
// docs/dev/kernels/linear.md.
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
  LinearParts parts;  // one at least; of several groups only one
  int64_t groups = 1;
  ActivationDtype activation = ActivationDtype::kNative;
  // x as FP16 in blocks (ops/activation_blocks.cuh), for the parts that LinearTakesBlocks; these do not read x, which
  // may then be null but for its shape.
  const uint8_t* x_blocks = nullptr;
  // Rows of x are RMS-normalised and multiplied by `norm` first, as rms_norm does; only where LinearNormalises every
  // part.
  Tensor norm = {};  // f32 [K], or none
  float norm_eps = 0;
};
// Whether linear and experts themselves round the inputs of such a weight to integers.
constexpr bool RoundsToIntegers(ActivationDtype activation, WeightFormat w) {
  return IsInteger(activation) && InfoOf(w).packed();
}
void Linear(const ExecContext& ctx, const LinearArgs& args);

// Whether a linear of this weight takes x_blocks here, and whether it writes y_blocks (it takes x_blocks then, too):
// the GPU's kernels do in Regime::kLongPrompt, where an input is one FP16 number (docs/dev/numerics.md, 3.1). Anything
// else would round x once more.
bool LinearTakesBlocks(const ExecContext& ctx, const QuantTensor& w);
bool LinearWritesBlocks(const ExecContext& ctx, const QuantTensor& w, int64_t groups);
// Whether it takes a norm along: the GPU's kernels of Regime::kDecode do.
bool LinearNormalises(const ExecContext& ctx, const QuantTensor& w);

// Whether it sends a rank's part of y to the others where it is made: a few rows, of GPUs that exchange by words. What
// sends it later waits for all of y first.
bool LinearPushes(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w);

// The kernels of a GPU for a weight: a function of the regime and the weight, never of T.
enum class LinearKernels : uint8_t {
  kRows,    // F32LinearKernel: F32 weights, as they lie in the file (rows/)
  kTiles,   // TileLinearKernel, or OneTokenKernel where it fits: packed weights, streamed once for a few rows (tile/);
            // on Hopper WideLinearKernel for 17 rows and more (wide/), to the same bits
  kPrompt,  // LinearKernel: packed weights, decoded for wgmma (wgmma/)
};
LinearKernels GpuLinearKernels(const ExecContext& ctx, const QuantTensor& w);
int GpuInputNumbers(const ExecContext& ctx, const QuantTensor& w);  // that an input of kPrompt is
// What runs on this device for `w`, one of the matrices of a call, with the numbers that an input is: "avx512",
// "LinearKernel, 2 x FP16".
std::string LinearImplementation(const ExecContext& ctx, const QuantTensor& w, std::span<const QuantTensor> of_call,
                                 int64_t groups, int64_t num_tokens);
OpImplementations DescribeLinear(const ExecContext& ctx);
OpWork WorkOf(const LinearArgs& args);

}  // namespace dsv4
