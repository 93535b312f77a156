// What attention does between its projections and itself, in one launch. Each part is left out when its tensor is
// empty:
//   q        every head: RmsNorm without a weight, Rope
//   kv       RmsNorm with `kv_norm`, Rope, RoundKv in the window's row format; with `append` also WindowAppend
//   index_q  every head: Rope, RoundIndexQuery
//   compress Compress: only with `append`, and nothing above reads or writes what it does
// `append` needs that no sequence has more tokens in this step than one and those that rings have slots to spare for:
// then the slots that are overwritten hold rows that have left the window, and attention, which comes later, does not
// read them.
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
  CacheView cache;  // its layer says the window's row format
  bool append = false;
  std::array<CompressArgs, 2> compress;
  int num_compress = 0;
  // Where QPrepareExpands says so: q and index_q are yet to be made by these linears.
  const LinearArgs* expands = nullptr;
};
// Whether the op does the linears in front of it, too, with the bits that the two have one after the other: on a GPU
// for one token, or a few of one sequence. A launch less, and the last one of those parts that read nothing of the
// other is hidden. The product
// stays here, and is no output of ops/linear, because a head's sums go from the blocks that make them to the warp that
// norms and turns them without leaving the cluster's shared memory; its loop is ops/linear's
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
// `expands`: a shape that QPrepareExpands, or null.
std::string QPrepareImplementation(const ExecContext& ctx, const ExpandShape* expands);
void QPrepare(const ExecContext& ctx, const QPrepareArgs& args);
OpImplementations DescribeQPrepare(const ExecContext& ctx);

}  // namespace dsv4
