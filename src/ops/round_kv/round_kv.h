// Rounds the step's KV rows to the values that the cache will hold: kv[t] = Decode(Encode(kv[t])) in the window's row
// format (docs/dev/model.md). Attention reads the step's own rows from this buffer, older ones from the ring.
#pragma once

#include "kv/row_format.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct RoundKvArgs {
  Tensor kv;  // f32 [T, Dh], in place
  RowFormat format;
};
void RoundKv(const ExecContext& ctx, const RoundKvArgs& args);
OpImplementations DescribeRoundKv(const ExecContext& ctx);

}  // namespace dsv4
