#include "ops/stream_mean/stream_mean.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void StreamMeanRef(const ExecContext& ctx, const StreamMeanArgs& a);
void StreamMeanCuda(const ExecContext& ctx, const StreamMeanArgs& a);

namespace {

constexpr Candidate<StreamMeanArgs> kStreamMeanCandidates[] = {
    DSV4_CUDA_ROW(StreamMeanCuda, "StreamMeanKernel"){"ref", SupportsCpu, StreamMeanRef},
};

}  // namespace

void StreamMean(const ExecContext& ctx, const StreamMeanArgs& a) {
  DSV4_CHECK_EQ(a.streams.dim(0), a.out.dim(0));
  DSV4_CHECK(a.first >= 0 && a.first + a.streams.dim(2) <= a.out.dim(1), "column ", a.first);
  RunOp("stream_mean", kStreamMeanCandidates, ctx, a);
}

OpImplementations DescribeStreamMean(const ExecContext& ctx) {
  return DescribeOp("stream_mean", kStreamMeanCandidates, ctx);
}

}  // namespace dsv4
