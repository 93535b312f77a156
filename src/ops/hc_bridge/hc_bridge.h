// The bridge between two sublayers: HcPost of the previous one, HcPre of the next one and the RMS norm after it, in
// float32:
//   streams = HcPost(y, post, comb, streams)      omitted if y is empty: before the first sublayer
//   x, post, comb = HcPre(streams; fn, base, scale)
//   x = RmsNorm(x; norm)
// A row's bits depend on the regime (exec_context.h), never on T.
#pragma once

#include "ops/registry.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct HcBridgeArgs {
  Tensor streams;  // f32 [T, H, D], in place
  Tensor y;        // f32 [T, D]: the previous sublayer's output; empty: there is none.
                   // Also [T, A, D] if HcBridgeAddsSlots: the sum over a, in order, starting at 0
  QuantTensor fn;  // [(2+H)H, H*D] f32 | bf16, as in hc_pre.h
  Tensor base;     // f32 [(2+H)H]
  Tensor scale;    // f32 [3]
  int64_t iters = 0;
  float eps = 0;
  float norm_eps = 0;  // of the streams' norm and of the norm of x
  Tensor norm;         // f32 [D]
  Tensor x;            // f32 [T, D], out; not y
  Tensor post;         // f32 [T, H]: in: the previous bridge's (read if y is set); out: this bridge's
  Tensor comb;         // f32 [T, H_src, H_dst]: the same
  // y, summed over a, is this rank's partial of the sublayer's output. The op adds the ranks' partials in the tree of
  // ops/sum_ranks, as the pass's collective `site`. Only if HcBridgeSumsRanks.
  bool sums_ranks = false;
  bool pushed = false;  // the op that computed y has already sent it (linear_parts.h)
  int64_t site = 0;
  uint8_t* x_blocks = nullptr;  // also x as FP16 in blocks (ops/activation_blocks.cuh); only if HcBridgeWritesBlocks
};
void HcBridge(const ExecContext& ctx, const HcBridgeArgs& args);

// For H streams of D columns: whether the op can also write x as blocks; whether it adds `slots` choices of y.
bool HcBridgeWritesBlocks(const ExecContext& ctx, int64_t streams, int64_t dim);
bool HcBridgeAddsSlots(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim, int64_t slots);
// Whether the op adds the ranks' partials of y, which saves a launch: each block sends and polls its own columns.
bool HcBridgeSumsRanks(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim, const QuantTensor& fn);
std::string HcBridgeImplementation(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim);
OpImplementations DescribeHcBridge(const ExecContext& ctx);

}  // namespace dsv4
