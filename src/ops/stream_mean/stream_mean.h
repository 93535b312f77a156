// out[t, first + c] = (streams[t, 0, c] + streams[t, 1, c] + .. in this order) / H, c < D; other columns of out do not
// change. float32. With H = 1 it copies rows into columns of wider rows.
#pragma once

#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct StreamMeanArgs {
  Tensor streams;     // f32 [T, H, D]
  Tensor out;         // f32 [T, W]
  int64_t first = 0;  // first + D <= W
};
void StreamMean(const ExecContext& ctx, const StreamMeanArgs& args);
OpImplementations DescribeStreamMean(const ExecContext& ctx);

}  // namespace dsv4
