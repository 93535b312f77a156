#include "ops/hc_post/hc_post.h"
#include "ops/hc_pre/site.cuh"

namespace dsv4 {

namespace {

constexpr int kHcPostThreads = 256;

// A thread owns four columns of a token in every stream.
template <int kStreams>
__global__ void __launch_bounds__(kHcPostThreads) HcPostKernel(const float* y, const float* post, const float* comb,
                                                               float* streams, int num_streams, int d, bool vector) {
  constexpr int kMost = kStreams > 0 ? kStreams : static_cast<int>(kMaxStreams);
  __shared__ float mixes[kMost + kMost * kMost];
  AllowNext();
  WaitForPrevious();
  const int h = kStreams > 0 ? kStreams : num_streams;
  const int64_t t = blockIdx.y;
  if (static_cast<int>(threadIdx.x) < h) mixes[threadIdx.x] = post[t * h + threadIdx.x];
  if (static_cast<int>(threadIdx.x) < h * h) mixes[h + threadIdx.x] = comb[t * h * h + threadIdx.x];
  const int column = (static_cast<int>(blockIdx.x) * kHcPostThreads + static_cast<int>(threadIdx.x)) * 4,
            count = d - column;
  float* at = streams + t * h * d + column;
  hc::Four in_y, old[kMost], out[kMost];
  if (count > 0) {
    in_y = hc::LoadFour(y + t * d + column, count, vector);
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j < h) old[j] = hc::LoadFour(at + static_cast<int64_t>(j) * d, count, vector);
    }
  }
  __syncthreads();
  if (count <= 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float in[kMost], mixed[kMost];
#pragma unroll
    for (int j = 0; j < kMost; ++j) in[j] = j < h ? old[j].v[i] : 0.0f;
    hc::MixColumn<kStreams>(mixes, mixes + h, in_y.v[i], in, mixed, h);
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (k < h) out[k].v[i] = mixed[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (k < h) hc::StoreFour(at + static_cast<int64_t>(k) * d, out[k], count, vector);
  }
}

}  // namespace

void HcPostCuda(const ExecContext& ctx, const HcPostArgs& a) {
  const int64_t num_tokens = a.streams.dim(0), h = a.streams.dim(1), d = a.streams.dim(2), kMostRows = 65535;
  const bool vector = d % 4 == 0 && hc::Aligned(a.y.data, 16) && hc::Aligned(a.streams.data, 16);
  const auto kernel = h == 4 ? HcPostKernel<4> : HcPostKernel<0>;
  for (int64_t done = 0; done < num_tokens; done += kMostRows) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(d, 4 * kHcPostThreads)),
                    static_cast<unsigned>(std::min(kMostRows, num_tokens - done)));
    Launch(ctx, kernel, grid, dim3(kHcPostThreads), 0, a.y.f32() + done * d, a.post.f32() + done * h,
           a.comb.f32() + done * h * h, a.streams.f32() + done * h * d, h, d, vector);
  }
}

}  // namespace dsv4
