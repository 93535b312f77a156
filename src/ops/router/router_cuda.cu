#include "device/launch.cuh"
#include "ops/router/router.h"

namespace dsv4 {

namespace {

constexpr int kWarps = 4;
constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr int64_t kMaxExperts = 1024, kMaxChosen = 32;

__device__ __forceinline__ float SqrtSoftplus(float z) { return sqrtf(z > 20.0f ? z : log1pf(expf(z))); }

// Orders as the float does; both zeros are equal, a NaN is the smallest. Never 0, which marks what is taken.
__device__ __forceinline__ uint32_t OrderedKey(float x) {
  if (x != x) return 1;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// One warp a token; lane l holds experts l, l + 32, ... Lane i < A ends up with the i-th chosen expert.
template <int PerLane>
__global__ void __launch_bounds__(kWarps * 32) RouterKernel(const float* logits, const float* bias, const int32_t* hash_table,
                                                            const int32_t* tokens, float scaling, int32_t* experts,
                                                            float* weights, int num_tokens, int num_experts, int count,
                                                            int64_t vocabulary) {
  AllowNext();
  WaitForPrevious();
  const int t = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (t >= num_tokens) return;
  const float* z = logits + int64_t{t} * num_experts;
  int mine = 0;
  float score = 0;
  if (hash_table != nullptr) {
    const int64_t token = tokens[t], row = token < 0 || token >= vocabulary ? 0 : token;
    if (lane < count) {
      mine = hash_table[row * count + lane];
      mine = mine < 0 ? 0 : mine >= num_experts ? num_experts - 1 : mine;
      score = SqrtSoftplus(z[mine]);
    }
  } else {
    uint32_t key[PerLane];
    float s[PerLane];
#pragma unroll
    for (int i = 0; i < PerLane; ++i) {
      const int e = lane + 32 * i;
      s[i] = e < num_experts ? SqrtSoftplus(z[e]) : 0.0f;
      key[i] = e < num_experts ? OrderedKey(s[i] + bias[e]) : 0;
    }
    for (int a = 0; a < count; ++a) {
      uint32_t best = 0;
      int at = 0;
#pragma unroll
      for (int i = 0; i < PerLane; ++i) {
        if (key[i] > best) best = key[i], at = i;  // the first of equals: the lowest expert of this lane
      }
      const uint32_t top = __reduce_max_sync(kAll, best);
      const unsigned candidate = best == top ? static_cast<unsigned>(lane + 32 * at) : 0xFFFFFFFFu;
      const unsigned chosen = __reduce_min_sync(kAll, candidate);
      float chosen_score = 0;
#pragma unroll
      for (int i = 0; i < PerLane; ++i) {
        if (chosen == static_cast<unsigned>(lane + 32 * i)) key[i] = 0, chosen_score = s[i];
      }
      chosen_score = __shfl_sync(kAll, chosen_score, static_cast<int>(chosen % 32));
      if (lane == a) mine = static_cast<int>(chosen), score = chosen_score;
    }
  }
  float sum = 0;
  for (int a = 0; a < count; ++a) sum += __shfl_sync(kAll, score, a);
  if (lane < count) {
    experts[int64_t{t} * count + lane] = mine;
    // 1e-20: scores that all underflow to 0 would give 0/0 (docs/model.md).
    weights[int64_t{t} * count + lane] = score / (sum + 1e-20f) * scaling;
  }
}

}  // namespace

void RouterCuda(const ExecContext& ctx, const RouterArgs& a) {
  const int64_t t = a.logits.dim(0), e = a.logits.dim(1), count = a.experts.dim(1);
  DSV4_CHECK(e <= kMaxExperts && count <= kMaxChosen, e, " experts, ", count, " chosen");
  const auto kernel = e <= 128 ? RouterKernel<4> : e <= 256 ? RouterKernel<8> : e <= 512 ? RouterKernel<16> : RouterKernel<32>;
  Launch(ctx, kernel, dim3(static_cast<unsigned>((t + kWarps - 1) / kWarps)), dim3(kWarps * 32), 0, a.logits.f32(),
         a.bias ? a.bias.f32() : nullptr, a.hash_table ? a.hash_table.i32() : nullptr, a.tokens ? a.tokens.i32() : nullptr,
         a.scaling_factor, a.experts.i32(), a.weights.f32(), static_cast<int>(t), static_cast<int>(e), static_cast<int>(count),
         a.hash_table ? a.hash_table.dim(0) : 0);
}

}  // namespace dsv4
