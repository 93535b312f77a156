#include "ops/stream_add/stream_add.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void StreamAddRef(const ExecContext& ctx, const StreamAddArgs& a);
void StreamAddCuda(const ExecContext& ctx, const StreamAddArgs& a);

namespace {

constexpr Candidate<StreamAddArgs> kStreamAddCandidates[] = {
    DSV4_CUDA_ROW(StreamAddCuda, "StreamAddKernel"){"ref", SupportsCpu, StreamAddRef},
};

}  // namespace

void StreamAdd(const ExecContext& ctx, const StreamAddArgs& a) {
  DSV4_CHECK(a.y.dim(0) == a.streams.dim(0) && a.y.dim(1) == a.streams.dim(2));
  RunOp("stream_add", kStreamAddCandidates, ctx, a);
}

OpImplementations DescribeStreamAdd(const ExecContext& ctx) {
  return DescribeOp("stream_add", kStreamAddCandidates, ctx);
}

}  // namespace dsv4
