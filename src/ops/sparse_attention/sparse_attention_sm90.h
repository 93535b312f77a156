// The tensor-core kernels of SparseAttention for Hopper, AttentionKernels::kTiles and kPrompt; sparse_attention_cuda.cu
// chooses.
#pragma once

#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4 {

void SparseAttentionSm90(const ExecContext& ctx, const SparseAttentionArgs& a);

}  // namespace dsv4
