// The tensor-core kernels of SparseAttention for Hopper; sparse_attention_cuda.cu chooses.
#pragma once

#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4 {

// Head size 512, heads a multiple of 16, rows in FP8 (448 + 64 channels) or BF16, a GPU of compute capability 9.0.
bool SparseAttentionSm90Fits(const SparseAttentionArgs& a);
// Of those, whether it runs as a prompt (sparse_attention_prompt_sm90.cu), which may write out_blocks.
bool SparseAttentionSm90IsPrompt(const ExecContext& ctx, const SparseAttentionArgs& a);
void SparseAttentionSm90(const ExecContext& ctx, const SparseAttentionArgs& a);

}  // namespace dsv4
