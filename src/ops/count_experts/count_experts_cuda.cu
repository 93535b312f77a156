#include "device/launch.cuh"
#include "ops/count_experts/count_experts.h"

namespace dsv4 {

namespace {

constexpr int kCountThreads = 256;

// One block per layer: only it writes the layer's counts.
__global__ void __launch_bounds__(kCountThreads)
    CountExpertsKernel(const int32_t* experts, int64_t layer_stride, int64_t num_ids, int num_experts, int64_t* chosen,
                       int64_t* passes) {
  __shared__ int of_pass[kMaxCountedOnGpu];
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += kCountThreads) of_pass[e] = 0;
  __syncthreads();
  AllowNext();
  WaitForPrevious();
  const int32_t* const ids = experts + static_cast<int64_t>(blockIdx.x) * layer_stride;
  for (int64_t i = threadIdx.x; i < num_ids; i += kCountThreads) {
    const int32_t e = ids[i];
    if (e >= 0 && e < num_experts) atomicAdd(&of_pass[e], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < num_experts; e += kCountThreads) {
    if (of_pass[e] == 0) continue;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * num_experts + e;
    chosen[at] += of_pass[e];
    if (passes != nullptr) ++passes[at];
  }
}

}  // namespace

void CountExpertsCuda(const ExecContext& ctx, const CountExpertsArgs& a) {
  Launch(ctx, CountExpertsKernel, dim3(static_cast<unsigned>(a.chosen.dim(0))), dim3(kCountThreads), 0, a.experts,
         a.layer_stride, a.num_ids, static_cast<int>(a.chosen.dim(1)), a.chosen.i64(),
         a.passes ? a.passes.i64() : nullptr);
}

}  // namespace dsv4
