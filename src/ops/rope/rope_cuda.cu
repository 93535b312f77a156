#include "device/launch.cuh"
#include "ops/rope/rope.h"

namespace dsv4 {

namespace {

constexpr int kRopeThreads = 256;

// One thread per pair; neighbouring threads have neighbouring pairs of one head. Products and sums are rounded one by
// one, as on the CPU.
__global__ void __launch_bounds__(kRopeThreads)
    RopeKernel(float* x, const float2* cos_sin, int64_t n, int64_t heads, int64_t dh, int pairs, float sign) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRopeThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t head = i / pairs, pair = i - head * pairs;
  float* at = x + (head + 1) * dh - 2 * (pairs - pair);
  const float2 cs = cos_sin[head / heads * pairs + pair];
  const float c = cs.x, s = sign * cs.y, even = at[0], odd = at[1];
  at[0] = __fsub_rn(__fmul_rn(even, c), __fmul_rn(odd, s));
  at[1] = __fadd_rn(__fmul_rn(even, s), __fmul_rn(odd, c));
}

}  // namespace

void RopeCuda(const ExecContext& ctx, const RopeArgs& a) {
  const int64_t pairs = a.cos_sin.dim(1), n = a.x.dim(0) * a.x.dim(1) * pairs;
  Launch(ctx, RopeKernel, dim3(static_cast<unsigned>((n + kRopeThreads - 1) / kRopeThreads)), dim3(kRopeThreads), 0,
         a.x.f32(), reinterpret_cast<const float2*>(a.cos_sin.f32()), n, a.x.dim(1), a.x.dim(2),
         static_cast<int>(pairs), a.inverse ? -1.0f : 1.0f);
}

}  // namespace dsv4
