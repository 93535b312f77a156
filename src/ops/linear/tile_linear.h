// Products of packed weights with up to a few dozen tokens on the GPU: what linear and linears launch. Weights are
// streamed once by all multiprocessors through rings in shared memory and multiplied on tensor cores (tile_mma.cuh).
//
// One launch takes up to eight matrices that share x. An item is 16 rows of one of them. K is cut into S slices, one for
// each block of a cluster, and each slice into P parts, one for each of P warps; partial sums meet in the shared memory of
// the block that owns the rows and are added in order of K. S and P depend on the shapes only, so that a row's bits do not
// depend on T.
#pragma once

#include "device/exec_context.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

struct TileLinearMatrix {
  QuantTensor w;        // kTiles
  float* y = nullptr;   // [T, rows]
  int64_t groups = 1;   // more than one only for a matrix alone; see linear.h
};

inline constexpr int kMaxTileLinearMatrices = 8;

// x: f32 [T, groups * K].
void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count);

}  // namespace dsv4
