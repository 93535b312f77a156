// y = x w^T with NVFP4 inputs and NVFP4 weights on Blackwell's block-scaled tensor cores, through cuBLASLt (W4A4).
// Compiled, never executed: no Blackwell GPU has been at hand. The conversions below have run on an H200.
//
// cuBLASLt is opened at run time (dlopen): the program starts without it, and linears then take their usual path.
// It takes codes by rows (two a byte, low nibble first) and scales in its own order: atoms of 128 rows x 4 blocks of 16
// columns, the atoms of a row one behind the other (NVIDIA, "cuBLAS Library", 1D block scaling factors layout; CUTLASS,
// SfAtom ((32, 4), (16, 4)) : ((16, 4), (0, 1))). Weights stay packed as tiles in memory and are unpacked for each call
// into scratch memory: worth it from some hundred tokens on, so decode steps keep their own kernels.
#pragma once

#include <cstdint>

#include "device/exec_context.h"
#include "ops/linear/linear.h"
#include "ops/pack_weight/pack_weight.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

inline constexpr int64_t kScaleAtomRows = 128, kScaleAtomBlocks = 4;

// Byte of the scale of row `row`, columns 16 block .. 16 block + 15, of a matrix with `num_blocks` such blocks a row.
constexpr int64_t BlockScaleOffset(int64_t row, int64_t block, int64_t num_blocks) {
  const int64_t atoms_across = (num_blocks + kScaleAtomBlocks - 1) / kScaleAtomBlocks;
  const int64_t atom = row / kScaleAtomRows * atoms_across + block / kScaleAtomBlocks;
  return atom * (kScaleAtomRows * kScaleAtomBlocks) + row % 32 * 16 + row % kScaleAtomRows / 32 * 4 +
         block % kScaleAtomBlocks;
}

// Of all scales of `rows` rows: whole atoms. Bytes of no scale are zero.
constexpr int64_t BlockScaleBytes(int64_t rows, int64_t num_blocks) {
  return CeilDiv(rows, kScaleAtomRows) * CeilDiv(num_blocks, kScaleAtomBlocks) * (kScaleAtomRows * kScaleAtomBlocks);
}

// The two operands on the device, in cuBLASLt's order.
struct BlockScaledOperand {
  uint8_t* codes = nullptr;   // [rows, K/2]
  uint8_t* scales = nullptr;  // BlockScaleBytes(rows, K/16)
};

// Weights: kTiles, NVFP4, rows a multiple of 16, K of 64.
void UnpackBlockScaled(const ExecContext& ctx, const QuantTensor& w, const BlockScaledOperand& out);
// Inputs x f32 [T, K], rounded as round_activation.h says for kNvfp4; row_scale f32 [T] gets the rows' global scales.
void QuantiseBlockScaled(const ExecContext& ctx, const float* x, int64_t num_tokens, int64_t cols,
                         const BlockScaledOperand& out, float* row_scale);

// Whether to try it: a GPU of compute capability 10 or 12, long prompts, a weight that it takes.
inline bool BlockScaledLinearTakes(const ExecContext& ctx, const QuantTensor& w) {
  const int generation = ctx.gpu.arch / 10;
  return ctx.device == DeviceKind::kCuda && ctx.regime == Regime::kLongPrompt &&
         (generation == 10 || generation == 12) && w.format == WeightFormat::kNvfp4 && w.rows % kTileRows16 == 0 &&
         w.cols % kTileCols64 == 0;
}
// x is not rounded yet. y f32 [T, N]. False where this machine or build has no cuBLASLt, or that has no product of this
// shape: y is untouched then.
[[nodiscard]] bool BlockScaledLinear(const ExecContext& ctx, const Tensor& x, const QuantTensor& w, const Tensor& y);

}  // namespace dsv4
