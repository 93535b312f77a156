// Processes a head or a row by a warp, and the arguments of the kernels of q_prepare.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/compress/compress.cuh"
#include "ops/q_prepare/q_prepare.h"

namespace dsv4::q_prepare {

__device__ __forceinline__ void PrefetchWeights(const float* weights, int count, int thread) {
  if (32 * thread < count) asm volatile("prefetch.global.L2 [%0];" ::"l"(weights + 32 * thread));
}

struct Params {
  float* q;
  float* kv;
  const float* kv_norm;
  float* index_q;
  const float2* cos_sin;
  int64_t num_q, num_kv, num_index;  // heads and rows: T N, T, T Ni; 0: omitted
  int heads, index_heads, dh, di, pairs;
  float eps, hadamard_scale;
  IndexDtype index_dtype;
  RowFormat row;
  bool append;
  LayerLayout layer;
  const SequenceView* sequences;
  const int32_t* sequence_of;
  const int64_t* positions;
  int num_compress, num_sequences;
  compress::Params compress[2];
};

// A warp holds a head: channels 64 j + 2 lane and the next in x[j], n channels in all. Pairs of RoPE never straddle
// lanes, and 64 channels are one x[j]: the block of an FP8 scale.
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
    for (int j = 0; j < Parts; ++j)
      x[j] = make_float2(__fmul_rn(x[j].x, weight.x[j].x), __fmul_rn(x[j].y, weight.x[j].y));
  }
  __device__ __forceinline__ void Rotate(const float2* cos_sin, int n, int pairs, int lane) {
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const int pair = (64 * j + 2 * lane - (n - 2 * pairs)) / 2;
      if (64 * j + 2 * lane < n - 2 * pairs || pair >= pairs) continue;
      const float2 cs = cos_sin[pair], v = x[j];
      x[j] = make_float2(__fsub_rn(__fmul_rn(v.x, cs.x), __fmul_rn(v.y, cs.y)),
                         __fadd_rn(__fmul_rn(v.x, cs.y), __fmul_rn(v.y, cs.x)));
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
        const float2 other = make_float2(__shfl_xor_sync(0xFFFFFFFFu, x[j].x, half / 2),
                                         __shfl_xor_sync(0xFFFFFFFFu, x[j].y, half / 2));
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
      x[j] = make_float2(gpu::E2m1ToF32(gpu::F32ToE2m1(x[j].x * inverse)) * scale,
                         gpu::E2m1ToF32(gpu::F32ToE2m1(x[j].y * inverse)) * scale);
    }
  }
  __device__ __forceinline__ void RoundBf16() {
#pragma unroll
    for (int j = 0; j < Parts; ++j) x[j] = make_float2(gpu::RoundToBf16(x[j].x), gpu::RoundToBf16(x[j].y));
  }
  // Rounds as RoundKv, and writes the row to `to` (null: does not write it).
  __device__ __forceinline__ void RoundKv(const RowFormat& f, gpu::RowPointer to, int lane) {
    const int n = static_cast<int>(f.dim),
              nope = f.kind == RowFormat::Kind::kFp8 ? n - static_cast<int>(f.rope_dim) : 0;
    float largest[Parts];  // all at once, because each takes five rounds
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
        if (to.data != nullptr)
          reinterpret_cast<float*>(to.data)[i] = x[j].x, reinterpret_cast<float*>(to.data)[i + 1] = x[j].y;
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
__device__ __forceinline__ void PrepareIndexHead(const Params& a, const float2* cos_sin, int di, int pairs, int lane,
                                                 Head<Parts>& head) {
  head.Rotate(cos_sin, di, pairs, lane);
  if (a.index_dtype == IndexDtype::kFp4) {
    head.Hadamard(a.di, a.hadamard_scale, lane);
    head.RoundFp4();
  } else if (a.index_dtype == IndexDtype::kBf16) {
    head.RoundBf16();
  }
}

template <int Parts>
__device__ __forceinline__ void IndexTask(const Params& a, int64_t task, int lane, int di, int pairs) {
  Head<Parts> head;
  float* at = a.index_q + task * a.di;
  head.Load(at, di, lane);
  PrepareIndexHead(a, a.cos_sin + task / a.index_heads * a.pairs, di, pairs, lane, head);
  head.Store(at, di, lane);
}

// Processes a head or a row. With sizes of 0 nothing is read or written.
template <int Parts>
__device__ __forceinline__ void Task(const Params& a, int64_t task, int lane, int dh, int di, int pairs,
                                     const gpu::RowPointer& to) {
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
  head.Store(at, dh, lane);
}

// Runs compressor `i` of the step, by a block. kOne: each sequence has one token.
template <int kThreads, bool kOne = false>
__device__ __forceinline__ void CompressorTask(const Params& a, int i, float* pooled) {
  const compress::Params& c = a.compress[i / a.num_sequences];
  const compress::FirstToken<kThreads> token(c, i % a.num_sequences);
  PrefetchWeights(c.norm, static_cast<int>(c.c.dim), static_cast<int>(threadIdx.x));
  PrefetchWeights(c.frequencies, c.pairs, static_cast<int>(threadIdx.x));
  WaitForPrevious();
  compress::CompressStep<kThreads, kOne>(c, token, pooled);
}

// All arguments except the compressors.
inline Params MakeParams(const QPrepareArgs& a) {
  Params p = {
      .q = a.q ? a.q.f32() : nullptr,
      .kv = a.kv ? a.kv.f32() : nullptr,
      .kv_norm = a.kv ? a.kv_norm.f32() : nullptr,
      .index_q = a.index_q ? a.index_q.f32() : nullptr,
      .cos_sin = reinterpret_cast<const float2*>(a.cos_sin.f32()),
      .num_q = a.q ? a.q.dim(0) * a.q.dim(1) : 0,
      .num_kv = a.kv ? a.kv.dim(0) : 0,
      .num_index = a.index_q ? a.index_q.dim(0) * a.index_q.dim(1) : 0,
      .heads = a.q ? static_cast<int>(a.q.dim(1)) : 1,
      .index_heads = a.index_q ? static_cast<int>(a.index_q.dim(1)) : 1,
      .dh = static_cast<int>(a.q    ? a.q.dim(2)
                             : a.kv ? a.kv.dim(1)
                                    : 0),
      .di = static_cast<int>(a.index_q ? a.index_q.dim(2) : 0),
      .pairs = static_cast<int>(a.cos_sin.dim(1)),
      .eps = a.norm_eps,
      .hadamard_scale = a.index_q ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.index_q.dim(2)))) : 0.0f,
      .index_dtype = a.index_dtype,
      .append = a.append};
  DSV4_CHECK(!a.q || !a.kv || a.q.dim(2) == a.kv.dim(1));
  DSV4_CHECK(p.dh % 2 == 0 && p.dh <= kMaxPreparedDimOnGpu && p.di <= kMaxPreparedDimOnGpu, "head dim ", p.dh);
  if (a.kv) {
    p.layer = *a.cache.layer;
    p.row = p.layer.window_row;
    DSV4_CHECK(p.row.kind != RowFormat::Kind::kFp8 || p.row.rope_dim % 2 == 0);
  }
  if (a.append) p.sequences = a.cache.sequences, p.sequence_of = a.cache.sequence_of, p.positions = a.cache.positions;
  return p;
}

// Adds the compressors. Returns the floats of shared memory that they need.
inline int64_t AddCompress(const QPrepareArgs& a, Params& p, int threads) {
  p.num_compress = a.num_compress;
  p.num_sequences = static_cast<int>(a.cache.num_sequences);
  int64_t shared_floats = 0;
  for (int i = 0; i < a.num_compress; ++i) {
    p.compress[i] = compress::MakeParams(a.compress[static_cast<size_t>(i)]);
    shared_floats = std::max(shared_floats, compress::SharedFloats(p.compress[i].c));
    DSV4_CHECK(p.compress[i].pairs <= threads);
  }
  return shared_floats;
}

// The launch that also computes the linears (expand_cuda.cu).
void Expand(const ExecContext& ctx, const QPrepareArgs& a);

}  // namespace dsv4::q_prepare
