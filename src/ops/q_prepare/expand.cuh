// What the kernels of expand_cuda.cu and expand_part_cuda.cu share.
#pragma once

#include "ops/linear/tile/warp_chunks.cuh"
#include "ops/q_prepare/expand.h"
#include "ops/q_prepare/heads.cuh"

namespace dsv4::q_prepare {

struct ExpandParams {
  tile_linear::Params linear;
  Params prepare;
};

// Where CutOf says `part`; `pooled`: bytes that the compressors take.
void ExpandPart(const ExecContext& ctx, const ExpandParams& params, const ExpandCut& cut, size_t pooled);

}  // namespace dsv4::q_prepare
