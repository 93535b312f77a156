#include <cuda_bf16.h>

#include <algorithm>

#include "device/launch.cuh"
#include "ops/embed/embed.h"
#include "ops/idle_row.h"

namespace dsv4 {

namespace {

constexpr int kEmbedThreads = 256;

__device__ __forceinline__ float AsFloat(float x) { return x; }
__device__ __forceinline__ float AsFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

// A token outside the table (the sampler's -1 for damaged logits) gives NaN, which later ops propagate.
template <typename Weight>
__global__ void __launch_bounds__(kEmbedThreads)
    EmbedKernel(const int32_t* tokens, const Weight* table, float* streams, int64_t v, int64_t num_streams, int64_t d) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.y, i = static_cast<int64_t>(blockIdx.x) * kEmbedThreads + threadIdx.x;
  if (i >= d) return;
  const int64_t token = tokens[t];
  const float none = token == kIdleToken ? 0.0f : __int_as_float(0x7FFFFFFF);
  const float x = token >= 0 && token < v ? AsFloat(table[token * d + i]) : none;
  for (int64_t h = 0; h < num_streams; ++h) streams[(t * num_streams + h) * d + i] = x;
}

}  // namespace

void EmbedCuda(const ExecContext& ctx, const EmbedArgs& a) {
  const int64_t num_tokens = a.tokens.dim(0), h = a.streams.dim(1), d = a.streams.dim(2), kMostRows = 65535;
  for (int64_t done = 0; done < num_tokens; done += kMostRows) {
    const dim3 grid(static_cast<unsigned>(CeilDiv(d, kEmbedThreads)),
                    static_cast<unsigned>(std::min(kMostRows, num_tokens - done)));
    const int32_t* tokens = a.tokens.i32() + done;
    float* streams = a.streams.f32() + done * h * d;
    if (a.table.format == WeightFormat::kBf16) {
      Launch(ctx, EmbedKernel<__nv_bfloat16>, grid, dim3(kEmbedThreads), 0, tokens,
             reinterpret_cast<const __nv_bfloat16*>(a.table.codes), streams, a.table.rows, h, d);
    } else {
      Launch(ctx, EmbedKernel<float>, grid, dim3(kEmbedThreads), 0, tokens,
             reinterpret_cast<const float*>(a.table.codes), streams, a.table.rows, h, d);
    }
  }
}

}  // namespace dsv4
