#include <algorithm>

#include "ops/activation_blocks.cuh"
#include "ops/compress/compress.cuh"
#include "ops/q_prepare/q_prepare.h"

namespace dsv4 {

namespace {

constexpr int kThreads = 256;
constexpr unsigned kDryBlocks = 128;

__device__ __forceinline__ void PrefetchWeights(const float* weights, int count, int thread) {
  if (32 * thread < count) asm volatile("prefetch.global.L2 [%0];" ::"l"(weights + 32 * thread));
}

struct Params {
  float* q;
  uint16_t* q_half;
  float* kv;
  const float* kv_norm;
  float* index_q;
  const float2* cos_sin;
  int64_t num_q, num_kv, num_index;  // heads and rows: T N, T, T Ni; 0 for what is left out
  int heads, index_heads, dh, di, pairs;
  float eps, hadamard_scale;
  IndexDtype index_dtype;
  RowFormat row;
  bool append;
  LayerLayout layer;
  int64_t window;
  const SequenceView* sequences;
  const int32_t* sequence_of;
  const int64_t* positions;
  int num_compress, num_sequences;
  compress::Params compress[2];
};

// A warp holds a head: channels 64 j + 2 lane and the next in x[j], n channels in all. Pairs of RoPE never straddle lanes,
// and 64 channels are one x[j]: the block of an FP8 scale.
template <int Parts>
struct Head {
  float2 x[Parts];

  __device__ __forceinline__ void Load(const float* from, int n, int lane) {
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const int i = 64 * j + 2 * lane;
      x[j] = i < n ? *reinterpret_cast<const float2*>(from + i) : make_float2(0, 0);
    }
  }
  __device__ __forceinline__ void Store(float* to, int n, int lane) const {
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const int i = 64 * j + 2 * lane;
      if (i < n) *reinterpret_cast<float2*>(to + i) = x[j];
    }
  }
  __device__ __forceinline__ void StoreHalf(uint16_t* to, int n, int lane) const {
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const int i = 64 * j + 2 * lane;
      if (i < n) *reinterpret_cast<uint32_t*>(to + i) = sm90::PackInputs<true>(x[j].x, x[j].y);
    }
  }
  __device__ __forceinline__ void Norm(int n, float eps) {
    float square = 0;
#pragma unroll
    for (int j = 0; j < Parts; ++j) square = __fmaf_rn(x[j].y, x[j].y, __fmaf_rn(x[j].x, x[j].x, square));
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(WarpSum(square), static_cast<float>(n)), eps)));
#pragma unroll
    for (int j = 0; j < Parts; ++j) x[j] = make_float2(__fmul_rn(x[j].x, scale), __fmul_rn(x[j].y, scale));
  }
  __device__ __forceinline__ void Scale(const Head& weight) {
#pragma unroll
    for (int j = 0; j < Parts; ++j) x[j] = make_float2(__fmul_rn(x[j].x, weight.x[j].x), __fmul_rn(x[j].y, weight.x[j].y));
  }
  __device__ __forceinline__ void Rotate(const float2* cos_sin, int n, int pairs, int lane) {
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const int pair = (64 * j + 2 * lane - (n - 2 * pairs)) / 2;
      if (64 * j + 2 * lane < n - 2 * pairs || pair >= pairs) continue;
      const float2 cs = cos_sin[pair], v = x[j];
      x[j] = make_float2(__fsub_rn(__fmul_rn(v.x, cs.x), __fmul_rn(v.y, cs.y)), __fadd_rn(__fmul_rn(v.x, cs.y), __fmul_rn(v.y, cs.x)));
    }
  }
  // Sums in the order of hadamard.h.
  __device__ __forceinline__ void Hadamard(int n, float scale, int lane) {
#pragma unroll
    for (int j = 0; j < Parts; ++j) x[j] = make_float2(__fadd_rn(x[j].x, x[j].y), __fsub_rn(x[j].x, x[j].y));
    for (int half = 2; half < min(n, 64); half *= 2) {
      const bool upper = lane & half / 2;
#pragma unroll
      for (int j = 0; j < Parts; ++j) {
        const float2 other = make_float2(__shfl_xor_sync(0xFFFFFFFFu, x[j].x, half / 2), __shfl_xor_sync(0xFFFFFFFFu, x[j].y, half / 2));
        x[j] = upper ? make_float2(__fsub_rn(other.x, x[j].x), __fsub_rn(other.y, x[j].y))
                     : make_float2(__fadd_rn(x[j].x, other.x), __fadd_rn(x[j].y, other.y));
      }
    }
#pragma unroll
    for (int half = 1; half < Parts; half *= 2) {
      if (64 * half >= n) break;
#pragma unroll
      for (int j = 0; j < Parts; ++j) {
        if (j & half) continue;
        const float2 a = x[j], b = x[j + half];
        x[j] = make_float2(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y));
        x[j + half] = make_float2(__fsub_rn(a.x, b.x), __fsub_rn(a.y, b.y));
      }
    }
#pragma unroll
    for (int j = 0; j < Parts; ++j) x[j] = make_float2(__fmul_rn(x[j].x, scale), __fmul_rn(x[j].y, scale));
  }
  __device__ __forceinline__ void RoundFp4() {
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      float largest = fmaxf(fabsf(x[j].x), fabsf(x[j].y));  // of 32 channels: half a warp
#pragma unroll
      for (int o = 1; o < 16; o *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, o));
      const int exponent = gpu::Fp4ScaleExponent(largest);
      const float scale = gpu::Exp2Int(exponent), inverse = gpu::Exp2Int(-exponent);
      x[j] = make_float2(gpu::E2m1ToF32(gpu::F32ToE2m1(x[j].x * inverse)) * scale, gpu::E2m1ToF32(gpu::F32ToE2m1(x[j].y * inverse)) * scale);
    }
  }
  __device__ __forceinline__ void RoundBf16() {
#pragma unroll
    for (int j = 0; j < Parts; ++j) x[j] = make_float2(gpu::RoundToBf16(x[j].x), gpu::RoundToBf16(x[j].y));
  }
  // Rounds as RoundKv, and writes the row where `to` says (null: nowhere).
  __device__ __forceinline__ void RoundKv(const RowFormat& f, gpu::RowPointer to, int lane) {
    const int n = static_cast<int>(f.dim), nope = f.kind == RowFormat::Kind::kFp8 ? n - static_cast<int>(f.rope_dim) : 0;
    float largest[Parts];  // all at once, for each takes five rounds
#pragma unroll
    for (int j = 0; j < Parts; ++j) largest[j] = 64 * j + 2 * lane < nope ? fmaxf(fabsf(x[j].x), fabsf(x[j].y)) : 0.0f;
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
#pragma unroll
      for (int j = 0; j < Parts; ++j) largest[j] = fmaxf(largest[j], __shfl_xor_sync(0xFFFFFFFFu, largest[j], o));
    }
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const int i = 64 * j + 2 * lane;
      if (64 * j < nope) {
        const bool mine = i < nope;
        const int exponent = gpu::Fp8ScaleExponent(largest[j]);
        const float scale = gpu::Exp2Int(exponent), inverse = gpu::Exp2Int(-exponent);
        if (mine) {
          const uint8_t low = gpu::F32ToE4m3(x[j].x * inverse), high = gpu::F32ToE4m3(x[j].y * inverse);
          x[j] = make_float2(gpu::E4m3ToF32(low) * scale, gpu::E4m3ToF32(high) * scale);
          if (to.data != nullptr) to.data[i] = low, to.data[i + 1] = high;
        }
        if (to.data != nullptr && lane == 0) to.scale[j] = gpu::E8m0FromExponent(exponent);
      }
      if (i < nope || i >= n) continue;
      if (f.kind == RowFormat::Kind::kF32) {
        if (to.data != nullptr) reinterpret_cast<float*>(to.data)[i] = x[j].x, reinterpret_cast<float*>(to.data)[i + 1] = x[j].y;
        continue;
      }
      const uint16_t low = gpu::F32ToBf16(x[j].x), high = gpu::F32ToBf16(x[j].y);
      x[j] = make_float2(gpu::Bf16ToF32(low), gpu::Bf16ToF32(high));
      if (to.data == nullptr) continue;
      gpu::StoreU16(to.data + nope + 2 * (i - nope), low);
      gpu::StoreU16(to.data + nope + 2 * (i - nope) + 2, high);
    }
    if (to.data != nullptr) {
      for (int b = (nope + 63) / 64 + lane; b < f.scale_bytes; b += 32) to.scale[b] = 0;
    }
  }
};

template <int Parts>
__device__ __forceinline__ void IndexTask(const Params& a, int64_t task, int lane, int di, int pairs) {
  Head<Parts> head;
  float* at = a.index_q + task * a.di;
  head.Load(at, di, lane);
  head.Rotate(a.cos_sin + task / a.index_heads * a.pairs, di, pairs, lane);
  if (a.index_dtype == IndexDtype::kFp4) {
    head.Hadamard(a.di, a.hadamard_scale, lane);
    head.RoundFp4();
  } else if (a.index_dtype == IndexDtype::kBf16) {
    head.RoundBf16();
  }
  head.Store(at, di, lane);
}

// A head or a row. With sizes of 0 nothing is read or written.
template <int Parts>
__device__ __forceinline__ void Task(const Params& a, int64_t task, int lane, int dh, int di, int pairs, const gpu::RowPointer& to) {
  Head<Parts> head;
  if (task < a.num_kv) {
    float* at = a.kv + task * a.dh;
    Head<Parts> weight;
    head.Load(at, dh, lane);
    weight.Load(a.kv_norm, dh, lane);
    head.Norm(dh, a.eps);
    head.Scale(weight);
    head.Rotate(a.cos_sin + task * a.pairs, dh, pairs, lane);
    head.RoundKv(a.row, to, lane);
    head.Store(at, dh, lane);
    return;
  }
  task -= a.num_kv;
  if (task < a.num_index) {
    if (a.di <= 128) {
      IndexTask<2>(a, task, lane, di, pairs);
    } else {
      IndexTask<Parts>(a, task, lane, di, pairs);
    }
    return;
  }
  task -= a.num_index;
  if (task >= a.num_q) return;
  float* at = a.q + task * a.dh;
  head.Load(at, dh, lane);
  head.Norm(dh, a.eps);
  head.Rotate(a.cos_sin + task / a.heads * a.pairs, dh, pairs, lane);
  if (a.q_half != nullptr) {
    head.StoreHalf(a.q_half + task * a.dh, dh, lane);
  } else {
    head.Store(at, dh, lane);
  }
}

template <int Parts>
__global__ void __launch_bounds__(kThreads, Parts <= 8 ? 4 : 2) QPrepareKernel(const __grid_constant__ Params a) {
  AllowNext();
  const int first_block = a.num_compress * a.num_sequences;  // first: they take longest
  if (static_cast<int>(blockIdx.x) < first_block) {
    extern __shared__ float pooled[];
    const int i = static_cast<int>(blockIdx.x);
    const compress::Params& c = a.compress[i / a.num_sequences];
    const compress::FirstToken<kThreads> token(c, i % a.num_sequences);
    PrefetchWeights(c.norm, static_cast<int>(c.c.dim), static_cast<int>(threadIdx.x));
    PrefetchWeights(c.frequencies, c.pairs, static_cast<int>(threadIdx.x));
    WaitForPrevious();
    compress::CompressStep<kThreads>(c, token, pooled);
    return;
  }
  int64_t task = static_cast<int64_t>(static_cast<int>(blockIdx.x) - first_block) * (kThreads / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  gpu::RowPointer to = {nullptr, nullptr};
  if (task < a.num_kv) PrefetchWeights(a.kv_norm, a.dh, lane);
  if (task < a.num_kv && a.append) to = gpu::WindowRow(a.layer, a.window, a.sequences[a.sequence_of[task]], a.positions[task]);
  // A small grid waits long before it may begin: it goes through its task twice, first without data. Then the code is there
  // when the data is; it is run once a layer, and fetching it line by line takes longer than what it does.
#pragma unroll 1
  for (int pass = gridDim.x <= kDryBlocks ? 0 : 1; pass < 2; ++pass) {
    const bool real = pass == 1;
    if (real) WaitForPrevious();
    Task<Parts>(a, task, lane, real ? a.dh : 0, real ? a.di : 0, real ? a.pairs : 0, real ? to : gpu::RowPointer{nullptr, nullptr});
  }
}

// Index heads of 128 channels in long prompts: what IndexTask does with them, bit for bit. A lane has channels 4 lane .. + 3, a
// warp kIndexHeads heads, all asked for at once.
constexpr int kIndexHeads = 4;
constexpr int64_t kManyIndexHeads = 4096;

__device__ __forceinline__ float4 AddSub(const float4& v, const float4& other, bool upper) {
  return upper ? make_float4(__fsub_rn(other.x, v.x), __fsub_rn(other.y, v.y), __fsub_rn(other.z, v.z), __fsub_rn(other.w, v.w))
               : make_float4(__fadd_rn(v.x, other.x), __fadd_rn(v.y, other.y), __fadd_rn(v.z, other.z), __fadd_rn(v.w, other.w));
}

__global__ void __launch_bounds__(kThreads) IndexHeadsKernel(float* index_q, const float2* cos_sin, int num_index, int index_heads, int pairs, float scale,
                                                             IndexDtype dtype) {
  AllowNext();
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x % 32), first = (static_cast<int>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32) * kIndexHeads;
  float4 x[kIndexHeads], angles[kIndexHeads];
  const int rotated = 4 * lane - (128 - 2 * pairs);  // channels before this lane's that RoPE turns
#pragma unroll
  for (int i = 0; i < kIndexHeads; ++i) {
    if (first + i >= num_index) continue;
    x[i] = __ldcg(reinterpret_cast<const float4*>(index_q + static_cast<int64_t>(first + i) * 128) + lane);
    angles[i] = make_float4(1, 0, 1, 0);
    if (rotated >= 0) angles[i] = __ldg(reinterpret_cast<const float4*>(cos_sin + static_cast<int64_t>((first + i) / index_heads) * pairs) + rotated / 4);
  }
#pragma unroll
  for (int i = 0; i < kIndexHeads; ++i) {
    if (first + i >= num_index) return;
    float4 v = x[i];
    if (rotated >= 0) {
      const float4 c = angles[i];
      v = make_float4(__fsub_rn(__fmul_rn(v.x, c.x), __fmul_rn(v.y, c.y)), __fadd_rn(__fmul_rn(v.x, c.y), __fmul_rn(v.y, c.x)),
                      __fsub_rn(__fmul_rn(v.z, c.z), __fmul_rn(v.w, c.w)), __fadd_rn(__fmul_rn(v.z, c.w), __fmul_rn(v.w, c.z)));
    }
    if (dtype == IndexDtype::kFp4) {
      v = make_float4(__fadd_rn(v.x, v.y), __fsub_rn(v.x, v.y), __fadd_rn(v.z, v.w), __fsub_rn(v.z, v.w));
      v = make_float4(__fadd_rn(v.x, v.z), __fadd_rn(v.y, v.w), __fsub_rn(v.x, v.z), __fsub_rn(v.y, v.w));
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const float4 other = make_float4(__shfl_xor_sync(~0u, v.x, o), __shfl_xor_sync(~0u, v.y, o), __shfl_xor_sync(~0u, v.z, o), __shfl_xor_sync(~0u, v.w, o));
        v = AddSub(v, other, lane & o);
      }
      v = make_float4(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale), __fmul_rn(v.w, scale));
      float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));  // of 32 channels: eight lanes
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

void QPrepareCuda(const ExecContext& ctx, const QPrepareArgs& a) {
  Params p = {.q = a.q ? a.q.f32() : nullptr,
              .q_half = a.q_half,
              .kv = a.kv ? a.kv.f32() : nullptr,
              .kv_norm = a.kv ? a.kv_norm.f32() : nullptr,
              .index_q = a.index_q ? a.index_q.f32() : nullptr,
              .cos_sin = reinterpret_cast<const float2*>(a.cos_sin.f32()),
              .num_q = a.q ? a.q.dim(0) * a.q.dim(1) : 0,
              .num_kv = a.kv ? a.kv.dim(0) : 0,
              .num_index = a.index_q ? a.index_q.dim(0) * a.index_q.dim(1) : 0,
              .heads = a.q ? static_cast<int>(a.q.dim(1)) : 1,
              .index_heads = a.index_q ? static_cast<int>(a.index_q.dim(1)) : 1,
              .dh = static_cast<int>(a.q ? a.q.dim(2) : a.kv ? a.kv.dim(1) : 0),
              .di = static_cast<int>(a.index_q ? a.index_q.dim(2) : 0),
              .pairs = static_cast<int>(a.cos_sin.dim(1)),
              .eps = a.norm_eps,
              .hadamard_scale = a.index_q ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.index_q.dim(2)))) : 0.0f,
              .index_dtype = a.index_dtype,
              .append = a.append};
  DSV4_CHECK(!a.q || !a.kv || a.q.dim(2) == a.kv.dim(1));
  DSV4_CHECK(p.dh % 2 == 0 && p.dh <= 1024 && p.di <= 1024, "head dim ", p.dh);
  if (a.kv) {
    p.layer = *a.cache.layer;
    p.row = p.layer.window_row;
    DSV4_CHECK(p.row.kind != RowFormat::Kind::kFp8 || p.row.rope_dim % 2 == 0);
  }
  if (a.append) p.window = a.cache.window, p.sequences = a.cache.sequences, p.sequence_of = a.cache.sequence_of, p.positions = a.cache.positions;
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  if (p.num_index >= kManyIndexHeads && p.num_index < (int64_t{1} << 31) - kIndexHeads && p.di == 128 && p.pairs % 2 == 0 && p.pairs <= 64 &&
      aligned(p.index_q) && aligned(p.cos_sin)) {
    constexpr int64_t kHeads = kThreads / 32 * kIndexHeads;
    Launch(ctx, IndexHeadsKernel, dim3(static_cast<unsigned>((p.num_index + kHeads - 1) / kHeads)), dim3(kThreads), 0, p.index_q, p.cos_sin,
           static_cast<int>(p.num_index), p.index_heads, p.pairs, p.hadamard_scale, p.index_dtype);
    p.num_index = 0;
  }
  p.num_compress = a.num_compress;
  p.num_sequences = static_cast<int>(a.cache.num_sequences);
  int64_t shared_floats = 0;
  for (int i = 0; i < a.num_compress; ++i) {
    p.compress[i] = compress::MakeParams(a.compress[static_cast<size_t>(i)]);
    shared_floats = std::max(shared_floats, compress::SharedFloats(p.compress[i].c));
    DSV4_CHECK(p.compress[i].pairs <= kThreads);
  }
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
