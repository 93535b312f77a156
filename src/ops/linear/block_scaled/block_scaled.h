// y = x w^T with NVFP4 inputs and NVFP4 weights on Blackwell's block-scaled tensor cores, through cuBLASLt (W4A4).
// Compiled, never run: no Blackwell GPU has been available. The conversions below have run on an H200.
//
// cuBLASLt is opened at run time (dlopen). Without it the program starts, and linears use their usual kernels. cuBLASLt
// reads codes by rows (two per byte, low nibble first). It reads scales in its own order: atoms of 128 rows x 4 blocks
// of 16 columns, the atoms of a row one after the other (NVIDIA, "cuBLAS Library", 1D block scaling factors layout;
// CUTLASS, SfAtom ((32, 4), (16, 4)) : ((16, 4), (0, 1))). Weights stay packed as tiles in memory and are unpacked into
// scratch memory for each call. That pays off from some hundred tokens, so decode steps keep their own kernels.
#pragma once

#include <cstdint>

#include "device/exec_context.h"
#include "ops/linear/linear.h"
#include "ops/pack_weight/pack_weight.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

inline constexpr int64_t kScaleAtomRows = 128, kScaleAtomBlocks = 4;

// The byte offset of the scale of row `row`, columns 16 block .. 16 block + 15, in a matrix with `num_blocks` such
// blocks per row.
constexpr int64_t BlockScaleOffset(int64_t row, int64_t block, int64_t num_blocks) {
  const int64_t atoms_across = (num_blocks + kScaleAtomBlocks - 1) / kScaleAtomBlocks;
  const int64_t atom = row / kScaleAtomRows * atoms_across + block / kScaleAtomBlocks;
  return atom * (kScaleAtomRows * kScaleAtomBlocks) + row % 32 * 16 + row % kScaleAtomRows / 32 * 4 +
         block % kScaleAtomBlocks;
}

// The bytes of all scales of `rows` rows: whole atoms. Unused bytes are zero.
constexpr int64_t BlockScaleBytes(int64_t rows, int64_t num_blocks) {
  return CeilDiv(rows, kScaleAtomRows) * CeilDiv(num_blocks, kScaleAtomBlocks) * (kScaleAtomRows * kScaleAtomBlocks);
}

// One of the two operands on the device, in cuBLASLt's order.
struct BlockScaledOperand {
  uint8_t* codes = nullptr;   // [rows, K/2]
  uint8_t* scales = nullptr;  // BlockScaleBytes(rows, K/16)
};

// Unpacks weights: kTiles, NVFP4, rows a multiple of 16, K a multiple of 64.
void UnpackBlockScaled(const ExecContext& ctx, const QuantTensor& w, const BlockScaledOperand& out);
// Rounds inputs x f32 [T, K] as round_activation.h says for kNvfp4; row_scale f32 [T] gets the rows' global scales.
void QuantiseBlockScaled(const ExecContext& ctx, const float* x, int64_t num_tokens, int64_t cols,
                         const BlockScaledOperand& out, float* row_scale);

// Whether to try BlockScaledLinear: a GPU of compute capability 10 or 12, long prompts, a weight that it supports.
inline bool BlockScaledLinearTakes(const ExecContext& ctx, const QuantTensor& w) {
  const int generation = ctx.gpu.arch / 10;
  return ctx.device == DeviceKind::kCuda && ctx.regime == Regime::kLongPrompt &&
         (generation == 10 || generation == 12) && w.format == WeightFormat::kNvfp4 && w.rows % kTileRows16 == 0 &&
         w.cols % kTileCols64 == 0;
}
// x is not rounded yet; y is f32 [T, N]. Returns false, with y unchanged, if this machine or build has no cuBLASLt, or
// if cuBLASLt does not support the shape.
[[nodiscard]] bool BlockScaledLinear(const ExecContext& ctx, const Tensor& x, const QuantTensor& w, const Tensor& y);

}  // namespace dsv4
