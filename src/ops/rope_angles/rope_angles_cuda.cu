#include "device/launch.cuh"
#include "ops/rope_angles/rope_angles.h"

namespace dsv4 {

namespace {

constexpr int kRopeAnglesThreads = 64;

// float64 sine and cosine with the library's exact range reduction; the product is float32.
__global__ void __launch_bounds__(kRopeAnglesThreads)
    RopeAnglesKernel(const int64_t* positions, const float* frequencies, float2* cos_sin, int64_t n, int pairs) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kRopeAnglesThreads + threadIdx.x;
  if (i >= n) return;
  const float angle = __fmul_rn(static_cast<float>(positions[i / pairs]), frequencies[i % pairs]);
  double s, c;
  sincos(static_cast<double>(angle), &s, &c);
  cos_sin[i] = make_float2(static_cast<float>(c), static_cast<float>(s));
}

}  // namespace

void RopeAnglesCuda(const ExecContext& ctx, const RopeAnglesArgs& a) {
  const int64_t n = a.positions.dim(0) * a.frequencies.dim(0);
  Launch(ctx, RopeAnglesKernel, dim3(static_cast<unsigned>((n + kRopeAnglesThreads - 1) / kRopeAnglesThreads)),
         dim3(kRopeAnglesThreads), 0, a.positions.i64(), a.frequencies.f32(),
         reinterpret_cast<float2*>(a.cos_sin.f32()), n, static_cast<int>(a.frequencies.dim(0)));
}

}  // namespace dsv4
