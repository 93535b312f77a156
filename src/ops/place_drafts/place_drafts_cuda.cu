#include "device/launch.cuh"
#include "ops/place_drafts/place_drafts.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int kPlaceThreads = 128;

// The next kernel must not start early: it may read a step's tokens before it waits.
__global__ void __launch_bounds__(kPlaceThreads)
    PlaceDraftsKernel(const int32_t* drafted, const int64_t* positions, const KnownDraft* known, int32_t* tokens,
                      int64_t num_sequences, int64_t r) {
  WaitForPrevious();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kPlaceThreads + threadIdx.x, s = row / r, j = row - s * r;
  if (s >= num_sequences || j == 0) return;
  const KnownDraft k = known[s];
  const int64_t at = positions[s * r] + j - k.from;
  const int32_t token = at >= 0 && at < k.count ? k.tokens[at] : drafted[(j - 1) * num_sequences + s];
  tokens[row] = max(token, 0);
}

}  // namespace

void PlaceDraftsCuda(const ExecContext& ctx, const PlaceDraftsArgs& a) {
  const int64_t s = a.drafted.dim(1), r = a.drafted.dim(0) + 1;
  Launch(ctx, PlaceDraftsKernel, dim3(static_cast<unsigned>(CeilDiv(s * r, kPlaceThreads))), dim3(kPlaceThreads), 0,
         a.drafted.i32(), a.positions.i64(), a.known, a.tokens.i32(), s, r);
}

}  // namespace dsv4
