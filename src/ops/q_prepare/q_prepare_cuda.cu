#include <algorithm>

#include "ops/q_prepare/heads.cuh"
#include "ops/q_prepare/q_prepare.h"

namespace dsv4 {

namespace q_prepare {

namespace {

constexpr int kThreads = 256;
static_assert(kMaxRopeDimOnGpu <= 2 * kThreads);

template <int Parts>
__global__ void __launch_bounds__(kThreads, Parts <= 8 ? 4 : 2) QPrepareKernel(const __grid_constant__ Params a) {
  AllowNext();
  const int first_block = a.num_compress * a.num_sequences;  // first: they take longest
  if (static_cast<int>(blockIdx.x) < first_block) {
    extern __shared__ float pooled[];
    CompressorTask<kThreads>(a, static_cast<int>(blockIdx.x), pooled);
    return;
  }
  int64_t task = static_cast<int64_t>(static_cast<int>(blockIdx.x) - first_block) * (kThreads / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  gpu::RowPointer to = {nullptr, nullptr};
  if (task < a.num_kv) PrefetchWeights(a.kv_norm, a.dh, lane);
  if (task < a.num_kv && a.append) to = gpu::WindowRow(a.layer, a.sequences[a.sequence_of[task]], a.positions[task]);
  WaitForPrevious();
  Task<Parts>(a, task, lane, a.dh, a.di, a.pairs, to);
}

// Index heads of 128 channels in long prompts: the same as IndexTask, bit for bit. A lane has channels 4 lane .. + 3, a
// warp kIndexHeads heads, all requested at once.
constexpr int kIndexHeads = 4;
constexpr int64_t kManyIndexHeads = 4096;

__device__ __forceinline__ float4 AddSub(const float4& v, const float4& other, bool upper) {
  return upper ? make_float4(__fsub_rn(other.x, v.x), __fsub_rn(other.y, v.y), __fsub_rn(other.z, v.z),
                             __fsub_rn(other.w, v.w))
               : make_float4(__fadd_rn(v.x, other.x), __fadd_rn(v.y, other.y), __fadd_rn(v.z, other.z),
                             __fadd_rn(v.w, other.w));
}

__global__ void __launch_bounds__(kThreads)
    IndexHeadsKernel(float* index_q, const float2* cos_sin, int num_index, int index_heads, int pairs, float scale,
                     IndexDtype dtype) {
  AllowNext();
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x % 32),
            first = (static_cast<int>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32) * kIndexHeads;
  float4 x[kIndexHeads], angles[kIndexHeads];
  const int rotated = 4 * lane - (128 - 2 * pairs);  // channels before this lane's that RoPE turns
#pragma unroll
  for (int i = 0; i < kIndexHeads; ++i) {
    if (first + i >= num_index) continue;
    x[i] = __ldcg(reinterpret_cast<const float4*>(index_q + static_cast<int64_t>(first + i) * 128) + lane);
    angles[i] = make_float4(1, 0, 1, 0);
    if (rotated >= 0)
      angles[i] = __ldg(
          reinterpret_cast<const float4*>(cos_sin + static_cast<int64_t>((first + i) / index_heads) * pairs) +
          rotated / 4);
  }
#pragma unroll
  for (int i = 0; i < kIndexHeads; ++i) {
    if (first + i >= num_index) return;
    float4 v = x[i];
    if (rotated >= 0) {
      const float4 c = angles[i];
      v = make_float4(
          __fsub_rn(__fmul_rn(v.x, c.x), __fmul_rn(v.y, c.y)), __fadd_rn(__fmul_rn(v.x, c.y), __fmul_rn(v.y, c.x)),
          __fsub_rn(__fmul_rn(v.z, c.z), __fmul_rn(v.w, c.w)), __fadd_rn(__fmul_rn(v.z, c.w), __fmul_rn(v.w, c.z)));
    }
    if (dtype == IndexDtype::kFp4) {
      v = make_float4(__fadd_rn(v.x, v.y), __fsub_rn(v.x, v.y), __fadd_rn(v.z, v.w), __fsub_rn(v.z, v.w));
      v = make_float4(__fadd_rn(v.x, v.z), __fadd_rn(v.y, v.w), __fsub_rn(v.x, v.z), __fsub_rn(v.y, v.w));
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const float4 other = make_float4(__shfl_xor_sync(~0u, v.x, o), __shfl_xor_sync(~0u, v.y, o),
                                         __shfl_xor_sync(~0u, v.z, o), __shfl_xor_sync(~0u, v.w, o));
        v = AddSub(v, other, lane & o);
      }
      v = make_float4(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale), __fmul_rn(v.w, scale));
      // of 32 channels: eight lanes
      float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
      for (int o = 1; o < 8; o *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
      const int exponent = gpu::Fp4ScaleExponent(largest);
      const float up = gpu::Exp2Int(exponent), down = gpu::Exp2Int(-exponent);
      const auto round = [&](float y) { return gpu::E2m1ToF32(gpu::F32ToE2m1(y * down)) * up; };
      v = make_float4(round(v.x), round(v.y), round(v.z), round(v.w));
    } else if (dtype == IndexDtype::kBf16) {
      v = make_float4(gpu::RoundToBf16(v.x), gpu::RoundToBf16(v.y), gpu::RoundToBf16(v.z), gpu::RoundToBf16(v.w));
    }
    reinterpret_cast<float4*>(index_q + static_cast<int64_t>(first + i) * 128)[lane] = v;
  }
}

}  // namespace

}  // namespace q_prepare

void QPrepareCuda(const ExecContext& ctx, const QPrepareArgs& a) {
  using namespace q_prepare;
  if (a.expands != nullptr) return Expand(ctx, a);
  Params p = MakeParams(a);
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  if (p.num_index >= kManyIndexHeads && p.num_index < (int64_t{1} << 31) - kIndexHeads && p.di == 128 &&
      p.pairs % 2 == 0 && p.pairs <= 64 && aligned(p.index_q) && aligned(p.cos_sin)) {
    constexpr int64_t kHeads = kThreads / 32 * kIndexHeads;
    Launch(ctx, IndexHeadsKernel, dim3(static_cast<unsigned>((p.num_index + kHeads - 1) / kHeads)), dim3(kThreads), 0,
           p.index_q, p.cos_sin, static_cast<int>(p.num_index), p.index_heads, p.pairs, p.hadamard_scale,
           p.index_dtype);
    p.num_index = 0;
  }
  const int64_t shared_floats = AddCompress(a, p, kThreads);
  const int64_t warps = p.num_q + p.num_kv + p.num_index;
  const dim3 grid(static_cast<unsigned>((warps * 32 + kThreads - 1) / kThreads + p.num_compress * p.num_sequences));
  const size_t shared = static_cast<size_t>(shared_floats) * sizeof(float);
  if (std::max(p.dh, p.di) <= 512) {
    Launch(ctx, QPrepareKernel<8>, grid, dim3(kThreads), shared, p);
  } else {
    Launch(ctx, QPrepareKernel<16>, grid, dim3(kThreads), shared, p);
  }
}

}  // namespace dsv4
