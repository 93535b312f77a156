// Shared by the kernels of expand_cuda.cu and expand_part_cuda.cu.
#pragma once

#include "ops/linear/tile/warp_chunks.cuh"
#include "ops/q_prepare/expand.h"
#include "ops/q_prepare/heads.cuh"

namespace dsv4::q_prepare {

struct ExpandParams {
  tile_linear::Params linear;
  Params prepare;
};

inline constexpr int kMaxPairs = 32;  // of RoPE

// The task of a block without heads: a compressor, or the tokens' own rows; each warp has one of the rows, `token`, or
// none.
template <bool kOne>
__device__ __forceinline__ void OtherTask(const Params& a, int task, bool has_token, int token, int lane,
                                          uint8_t* shared) {
  if (task < a.num_compress) {
    CompressorTask<tile_linear::kThreads, kOne>(a, task, reinterpret_cast<float*>(shared));
  } else if (task == a.num_compress && has_token) {
    PrefetchWeights(a.kv_norm, a.dh, lane);
    gpu::RowPointer to = {nullptr, nullptr};
    if (a.append) to = gpu::WindowRow(a.layer, a.sequences[a.sequence_of[token]], a.positions[token]);
    WaitForPrevious();
    Task<kHead / 64>(a, token, lane, a.dh, a.di, a.pairs, to);
  }
}

// Prepares the inputs of the heads: the tokens as fragments, their scales, the angles of their positions.
template <int kTokens>
__device__ __forceinline__ void StageQueries(const ExpandParams& a, int num_tokens, int warp, int lane, uint8_t* inputs,
                                             float2 (&angles)[kTokens][kMaxPairs], float (&row_scales)[kTokens]) {
  const Params& prepare = a.prepare;
  if constexpr (kTokens == 1) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < prepare.pairs) angles[0][thread] = prepare.cos_sin[thread];
  } else if (warp < num_tokens && lane < prepare.pairs) {
    angles[warp][lane] = prepare.cos_sin[warp * prepare.pairs + lane];
  }
  tile_linear::StageTokens<kTokens>(a.linear, 0, inputs);
  tile_linear::ScalesOfTokens<kTokens>(a.linear, warp, row_scales);
}

// For CutOf with `part`; `pooled`: bytes for the compressors.
void ExpandPart(const ExecContext& ctx, const ExpandParams& params, const ExpandCut& cut, size_t pooled);

}  // namespace dsv4::q_prepare
