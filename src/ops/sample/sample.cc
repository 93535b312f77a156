#include "ops/sample/sample.h"

#include "ops/cuda_row.h"

namespace dsv4 {

void SampleRef(const ExecContext& ctx, const SampleArgs& a);
void SampleCuda(const ExecContext& ctx, const SampleArgs& a);

namespace {

constexpr Candidate<SampleArgs> kSampleCandidates[] = {
    DSV4_CUDA_ROW(SampleCuda, "SampleKernel"){"ref", SupportsCpu, SampleRef},
};

}  // namespace

void Sample(const ExecContext& ctx, const SampleArgs& a) {
  DSV4_CHECK(a.logits.dim(1) >= 1 && a.logits.dim(1) <= kMaxSampleVocab, "vocabulary of ", a.logits.dim(1));
  DSV4_CHECK_EQ(a.tokens.dim(0), a.logits.dim(0));
  DSV4_CHECK(!a.logprobs || a.logprobs.dim(0) == a.logits.dim(0));
  RunOp("sample", kSampleCandidates, ctx, a);
}

OpImplementations DescribeSample(const ExecContext& ctx) { return DescribeOp("sample", kSampleCandidates, ctx); }

}  // namespace dsv4
