// Sums of the slices that a rank has of a layer, where their order must not depend on how many ranks there are.
#pragma once

#include <functional>

#include "device/exec_context.h"
#include "tensor/tensor.h"

namespace dsv4 {

// Partial sums that are kept beside y while `count` slices (1, 2, 4 or 8) are added.
constexpr int SliceLevels(int count) {
  int levels = 0;
  for (; count > 1; count /= 2) ++levels;
  return levels;
}

// y f32 [T, D] = the sum of what make(k, part) writes into `part`, f32 [T, D], for each of `count` slices: in float32,
// as a balanced tree, ((0+1)+(2+3))+((4+5)+(6+7)), whose top op sum_ranks adds. sums: f32
// [SliceLevels(count), T or more, D].
void SumSlices(const ExecContext& ctx, int count, const Tensor& sums, const Tensor& y,
               const std::function<void(int k, const Tensor& part)>& make);

}  // namespace dsv4
