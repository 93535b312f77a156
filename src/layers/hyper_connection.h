// mHC, manifold-constrained hyper-connections (docs/dev/model.md): H residual streams, read and written
// through mixes that every token computes for itself. HcPre, HcPost and HcHead are ops; here are their weights.
#pragma once

#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct HcWeights {
  QuantTensor fn;  // [(2+H)H, H*D] f32 | bf16: rows pre, post, comb (H_src major)
  Tensor base;     // f32 [(2+H)H]
  Tensor scale;    // f32 [3]: gains of pre, post, comb
};

struct HcHeadWeights {
  QuantTensor fn;  // [H, H*D] f32 | bf16
  Tensor base;     // f32 [H]
  Tensor scale;    // f32 [1]
};

}  // namespace dsv4
