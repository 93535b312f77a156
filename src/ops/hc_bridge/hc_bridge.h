// From one mHC site to the next: HcPost of the site before, HcPre of the next one, and the RMS norm behind it, in
// float32:
//   streams = HcPost(y, post, comb, streams)      left out when y is empty: before the first site
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
  Tensor y;        // f32 [T, D]: what the sublayer of the site before made; empty: no site before.
                   // Where HcBridgeAddsSlots says so [T, A, D] as well: the sum over a, in order, from 0 on
  QuantTensor fn;  // [(2+H)H, H*D] f32 | bf16, as in hc_pre.h
  Tensor base;     // f32 [(2+H)H]
  Tensor scale;    // f32 [3]
  int64_t iters = 0;
  float eps = 0;
  float norm_eps = 0;  // of the streams' norm and of the norm of x
  Tensor norm;         // f32 [D]
  Tensor x;            // f32 [T, D], out; not y
  Tensor post;         // f32 [T, H]: of the site before (read when y is there); becomes this site's
  Tensor comb;         // f32 [T, H_src, H_dst]: likewise
  // y, its slots added up, is this rank's part of the sublayer's output (ops/sum_ranks, the same tree), where
  // HcBridgeSumsRanks: the pass's exchange `site`.
  bool sums_ranks = false;
  bool pushed = false;  // and what made y has sent it (linear_parts.h)
  int64_t site = 0;
  uint8_t* x_blocks = nullptr;  // x as FP16 in blocks (ops/activation_blocks.cuh) besides, where HcBridgeWritesBlocks
};
void HcBridge(const ExecContext& ctx, const HcBridgeArgs& args);

// Of H streams of D columns: whether x comes as blocks besides, and whether so many slots are added up here.
bool HcBridgeWritesBlocks(const ExecContext& ctx, int64_t streams, int64_t dim);
bool HcBridgeAddsSlots(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim, int64_t slots);
// Whether ranks' parts of y are added up here, and so a launch is saved: each block sends and polls its own columns.
bool HcBridgeSumsRanks(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim, const QuantTensor& fn);
std::string HcBridgeImplementation(const ExecContext& ctx, int64_t num_tokens, int64_t streams, int64_t dim);
OpImplementations DescribeHcBridge(const ExecContext& ctx);

}  // namespace dsv4
