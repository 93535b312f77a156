#include "ops/digest/digest.h"

#include "ops/cpu_rows.h"
#include "ops/cuda_row.h"

namespace dsv4 {

void DigestRef(const ExecContext& ctx, const DigestArgs& a);
void DigestCuda(const ExecContext& ctx, const DigestArgs& a);
DSV4_DECLARE_CPU(DigestCpu, DigestArgs)

namespace {

constexpr Candidate<DigestArgs> kDigestCandidates[] = {
    DSV4_CUDA_ROW(DigestCuda, "DigestKernel") DSV4_CPU_ROWS(DigestCpu){"ref", SupportsCpu, DigestRef},
};

}  // namespace

void Digest(const ExecContext& ctx, const DigestArgs& a) {
  DSV4_CHECK(a.sum.dtype == DType::kI64 && a.sum.num_elements() == 1);
  DSV4_CHECK(a.bytes >= 0);
  if (a.bytes > 0) RunOp("digest", kDigestCandidates, ctx, a);
}

OpImplementations DescribeDigest(const ExecContext& ctx) { return DescribeOp("digest", kDigestCandidates, ctx); }

}  // namespace dsv4
