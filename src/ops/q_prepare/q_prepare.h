// The work of an attention layer between its projections and sparse_attention, in one launch. A part is omitted if its
// tensor is empty:
//   q        every head: RmsNorm without a weight, Rope
//   kv       RmsNorm with `kv_norm`, Rope, RoundKv in the window's row format; with `append` also WindowAppend
//   index_q  every head: Rope, RoundIndexQuery
//   compress Compress: only with `append`; independent of the parts above
// `append` requires that a sequence has at most 1 + (window_slots - W) tokens in this step. Then the ring rows that are
// overwritten have already left the window, and attention, which comes later, does not read them.
#pragma once

#include <array>

#include "dsv4/types.h"
#include "kv/layout.h"
#include "ops/compress/compress.h"
#include "ops/linear/linear.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxPreparedDimOnGpu = 1024;  // Dh, Di

struct QPrepareArgs {
  Tensor q;        // f32 [T, N, Dh], in place
  Tensor kv;       // f32 [T, Dh], in place
  Tensor kv_norm;  // f32 [Dh]
  Tensor index_q;  // f32 [T, Ni, Di], in place; Di a power of two and a multiple of 32
  Tensor cos_sin;  // f32 [T, Dr/2, 2], from RopeAngles
  float norm_eps = 0;
  IndexDtype index_dtype = IndexDtype::kFp4;
  CacheView cache;  // its layer has the window's row format
  bool append = false;
  std::array<CompressArgs, 2> compress;
  int num_compress = 0;
  // If QPrepareExpands: the op first computes q and index_q by these linears.
  const LinearArgs* expands = nullptr;
};
// Whether the op also computes the linears before it, with the same bits as two separate ops: on a GPU, for one token
// or a few tokens of one sequence. That saves a launch and hides the time of the parts that do not read the linears'
// outputs. The product is part of this op and not of ops/linear because a head's sums stay in the cluster's shared
// memory, from the blocks that compute them to the warp that applies the norm and RoPE. The loop is that of ops/linear
// (linear/tile/one_token.cuh).
struct ExpandShape {
  int64_t num_tokens = 0, num_sequences = 1;
  bool append = false;
  int64_t heads = 0, head_dim = 0, rope_dim = 0;  // N, Dh, Dr
  int64_t index_heads = 0, index_head_dim = 0;    // Ni, Di; 0: no indexer
  int64_t num_compress = 0;
  QuantTensor q_b, index_q_b;  // [N*Dh, Rq], [Ni*Di, Rq]
};
ExpandShape ShapeOf(const QPrepareArgs& args, const LinearArgs& linears);
bool QPrepareExpands(const ExecContext& ctx, const ExpandShape& shape);
// `expands`: a shape for which QPrepareExpands holds, or null.
std::string QPrepareImplementation(const ExecContext& ctx, const ExpandShape* expands);
void QPrepare(const ExecContext& ctx, const QPrepareArgs& args);
OpImplementations DescribeQPrepare(const ExecContext& ctx);

}  // namespace dsv4
