#include "device/launch.cuh"
#include "ops/idle_row.h"
#include "ops/router/choice.cuh"
#include "ops/router/router.h"

namespace dsv4 {

namespace {

using router::OrderedKey;
using router::SqrtSoftplus;
using router::WarpLargest;
using router::WarpWeight;

constexpr int kWarps = 8, kRouterThreads = kWarps * 32;

// Writes the best of a warp's part of the experts, by their scores z [num_experts], to its place in `keys` and
// `indices`. The best comes first, and the warps' results follow each other, so of equal keys the smaller index comes
// first.
template <int PerThread>
__device__ __forceinline__ void ChooseInPart(const float* z, const float (&bias)[PerThread], bool real, int num_experts,
                                             int count, uint32_t* keys, int* indices) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t key[PerThread];
  int index[PerThread];
#pragma unroll
  for (int i = 0; i < PerThread; ++i) {
    const int e = (warp * PerThread + i) * 32 + lane;
    index[i] = e;
    key[i] = OrderedKey(SqrtSoftplus(real && e < num_experts ? z[e] : 0.0f) + bias[i]);
    if (e >= num_experts) key[i] = 0;
  }
  uint32_t my_key;
  int my_index;
  WarpLargest(key, index, min(count, 32 * PerThread), my_key, my_index);
  __syncthreads();  // the previous pass has read them
  if (lane < count) keys[warp * count + lane] = my_key, indices[warp * count + lane] = my_index;
  __syncthreads();
}

// Returns the i-th of the warps' choices in lane i of a warp. PerLane: candidates of a lane.
template <int PerLane>
__device__ __forceinline__ int ChooseAmongParts(const uint32_t* keys, const int* indices, int count) {
  const int lane = threadIdx.x % 32;
  uint32_t key[PerLane], my_key;
  int index[PerLane], my_index;
#pragma unroll
  for (int i = 0; i < PerLane; ++i) {
    const int at = lane + 32 * i;
    key[i] = at < kWarps * count ? keys[at] : 0;
    index[i] = key[i] != 0 ? indices[at] : 0x7FFFFFFF;
  }
  WarpLargest(key, index, count, my_key, my_index);
  return my_index;
}

// One block per token. Every warp chooses among its part of the experts, then the first warp chooses among the warps'
// choices. Its lane i < A has the i-th expert. PerThread: experts of a thread; PerLane: candidates of a lane at the
// end.
template <int PerThread, int PerLane>
__global__ void __launch_bounds__(kRouterThreads)
    RouterKernel(const float* logits, const float* bias, const int32_t* hash_table, const int32_t* tokens,
                 float scaling, int32_t* experts, float* weights, int num_experts, int count, int64_t vocabulary,
                 int always) {
  __shared__ uint32_t keys[PerLane * 32];
  __shared__ int indices[PerLane * 32];
  AllowNext();
  const int t = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float own_bias[PerThread] = {};
#pragma unroll
  for (int i = 0; i < PerThread; ++i) {
    const int e = (warp * PerThread + i) * 32 + lane;
    if (hash_table == nullptr && e < num_experts) own_bias[i] = bias[e];
  }
  const auto run = [&](bool real) {
    const float* const z = logits + int64_t{t} * num_experts;
    int mine = 0;
    if (hash_table == nullptr) {
      ChooseInPart(z, own_bias, real, num_experts, count, keys, indices);
      if (warp != 0) return;
      mine = ChooseAmongParts<PerLane>(keys, indices, count);
    } else {
      if (warp != 0) return;
      const int64_t token = tokens[t], row = token < 0 || token >= vocabulary ? 0 : token;
      if (lane < count) mine = hash_table[row * count + lane];
    }
    mine = min(max(mine, 0), num_experts - 1);
    const float weight = WarpWeight(lane < count ? SqrtSoftplus(real ? z[mine] : 0.0f) : 0.0f, count, scaling);
    const int first = always >= 0 ? 1 : 0;
    const int64_t out = int64_t{t} * (first + count);
    const bool idle = real && tokens != nullptr && tokens[t] == kIdleToken;
    if (real && first == 1 && lane == 0) experts[out] = idle ? kNoExpert : always, weights[out] = idle ? 0.0f : 1.0f;
    if (real && lane < count) {
      experts[out + first + lane] = idle ? kNoExpert : mine;
      weights[out + first + lane] = idle ? 0.0f : weight;
    }
  };
  // Two passes: the first has no logits and runs before the wait, so that the code is loaded when the logits are
  // available.
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 1) WaitForPrevious();
    run(pass == 1);
  }
}

template <int PerThread>
void Run(const ExecContext& ctx, const RouterArgs& a) {
  const int64_t count = a.experts.dim(1) - (a.always >= 0 ? 1 : 0);
  Launch(ctx, count <= 8 ? RouterKernel<PerThread, 2> : RouterKernel<PerThread, 8>,
         dim3(static_cast<unsigned>(a.logits.dim(0))), dim3(kRouterThreads), 0, a.logits.f32(),
         a.bias ? a.bias.f32() : nullptr, a.hash_table ? a.hash_table.i32() : nullptr,
         a.tokens ? a.tokens.i32() : nullptr, a.scaling_factor, a.experts.i32(), a.weights.f32(),
         static_cast<int>(a.logits.dim(1)), static_cast<int>(count), a.hash_table ? a.hash_table.dim(0) : 0,
         static_cast<int>(a.always));
}

}  // namespace

void RouterOneCuda(const ExecContext& ctx, const RouterArgs& a);

void RouterCuda(const ExecContext& ctx, const RouterArgs& a) {
  if (a.w) return RouterOneCuda(ctx, a);
  const int64_t e = a.logits.dim(1), count = a.experts.dim(1) - (a.always >= 0 ? 1 : 0);
  DSV4_CHECK(e <= kMaxRoutedOnGpu && count <= kMaxChosenOnGpu, e, " experts, ", count, " chosen");
  if (e <= 256) return Run<1>(ctx, a);
  if (e <= 512) return Run<2>(ctx, a);
  Run<4>(ctx, a);
}

}  // namespace dsv4
