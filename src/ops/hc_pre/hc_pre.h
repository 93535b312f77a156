// Reads the residual streams and computes the mixes of one bridge (docs/dev/model.md), all in float32:
//   X = streams[t] flattened [H*D];  rho = 1 / sqrt(mean(X^2) + norm_eps);  m = rho * (fn X)
//   pre[j]     = sigmoid(m[j] * scale[0] + base[j]) + eps
//   post[j]    = 2 sigmoid(m[H+j] * scale[1] + base[H+j])
//   comb[j, k] = Sinkhorn(m[2H + H j + k] * scale[2] + base[...]):  softmax over k, + eps, columns / (sum + eps), then
//                (iters - 1) times rows / (sum + eps), columns / (sum + eps)
//   x[t] = sum_j pre[j] * streams[t, j]
// The first axis of comb is the source stream, the second the destination.
#pragma once

#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct HcPreArgs {
  Tensor streams;     // f32 [T, H, D]
  QuantTensor fn;     // [(2+H)H, H*D] f32 | bf16
  Tensor base;        // f32 [(2+H)H]
  Tensor scale;       // f32 [3]: pre, post, comb
  int64_t iters = 0;  // Sinkhorn iterations (column steps)
  float eps = 0;
  float norm_eps = 0;
  Tensor x;     // f32 [T, D]
  Tensor post;  // f32 [T, H]
  Tensor comb;  // f32 [T, H_src, H_dst]
};
void HcPre(const ExecContext& ctx, const HcPreArgs& args);

// The GPU kernels for a bridge of H streams of D columns: a function of the regime, the shapes and T. kCluster and kAny
// give a row the same bits.
enum class HcKernels : uint8_t {
  kAny,      // DotsKernel, MixKernel
  kCluster,  // ClusterSiteKernel, one launch: for a few rows of the released models' shapes
  kPrompt,   // PrefillDotsKernel, PrefillMixesKernel, PrefillSumKernel
};
inline constexpr int64_t kMaxClusterTokens = 4;  // an H200 runs at most this many clusters of 16 blocks at once
HcKernels GpuHcKernels(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim);
OpImplementations DescribeHcPre(const ExecContext& ctx);
OpWork WorkOf(const HcPreArgs& args);

}  // namespace dsv4
