// Writes each sequence's rows of this step (at most the last window_slots) into its window ring, row = position %
// window_slots. Runs after attention: until then the ring holds the rows before the step.
#pragma once

#include "kv/layout.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct WindowAppendArgs {
  Tensor kv;  // f32 [T, Dh]
  CacheView cache;
};
void WindowAppend(const ExecContext& ctx, const WindowAppendArgs& args);
OpImplementations DescribeWindowAppend(const ExecContext& ctx);

}  // namespace dsv4
