// streams[t, h, :] = table[tokens[t], :] for every stream h. Exact (BF16 is widened). A padding row (ops/idle_row.h)
// becomes zeros.
#pragma once

#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct EmbedArgs {
  Tensor tokens;      // i32 [T], each in [0, V), or kIdleToken
  QuantTensor table;  // [V, D] bf16 | f32
  Tensor streams;     // f32 [T, H, D]
};
void Embed(const ExecContext& ctx, const EmbedArgs& args);
OpImplementations DescribeEmbed(const ExecContext& ctx);

}  // namespace dsv4
