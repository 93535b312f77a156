#include "device/launch.cuh"
#include "ops/accept_drafts/accept_one.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kAcceptThreads = 32;

// The next kernel must not start early: it reads the step before it waits.
__global__ void __launch_bounds__(kAcceptThreads) AcceptDraftsKernel(const AcceptPointers p, int64_t num_sequences) {
  WaitForPrevious();
  const int64_t s = static_cast<int64_t>(blockIdx.x) * kAcceptThreads + threadIdx.x;
  if (s < num_sequences) AcceptOne(p, s);
}

}  // namespace

void AcceptDraftsCuda(const ExecContext& ctx, const AcceptDraftsArgs& a) {
  const int64_t s = a.draft_tokens.dim(0);
  Launch(ctx, AcceptDraftsKernel, dim3(static_cast<unsigned>(CeilDiv(s, kAcceptThreads))), dim3(kAcceptThreads), 0,
         AcceptPointers(a), s);
}

}  // namespace dsv4
