#include <cmath>

#include "device/launch.cuh"
#include "ops/block_reduce.cuh"
#include "ops/rope/rope.h"
#include "ops/sparse_attention/rows.cuh"
#include "ops/sparse_attention/sparse_attention_sm90.h"

namespace dsv4 {

namespace {

// ---- any shape, float32 throughout ----

constexpr int kHeads = 8;  // heads of a block, one per warp
constexpr int kTile = 16;  // rows in shared memory at a time
constexpr int kSparseAttentionThreads = 32 * kHeads;

// The number of rows of an index list before its first -1; by the whole block.
__device__ __forceinline__ int CountPicks(const gpu::AttendedRows& list) {
  __shared__ int num_picks;
  if (threadIdx.x == 0) num_picks = list.num_compressed;
  __syncthreads();
  for (int i = threadIdx.x; i < list.num_compressed; i += kSparseAttentionThreads) {
    if (list.picks[i] < 0) atomicMin(&num_picks, i);
  }
  __syncthreads();
  return num_picks;
}

// Scores a head's channels x with `count` rows: lane r has the score of row r.
template <int Parts>
__device__ __forceinline__ float ScoreRows(const float (&x)[Parts], const float* rows, int count, int dh, float scale,
                                           int lane) {
  float mine = -INFINITY;
  for (int r = 0; r < count; ++r) {
    float dot = 0;
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const int i = lane + 32 * j;
      if (i < dh) dot = __fmaf_rn(x[j], rows[r * dh + i], dot);
    }
    dot = WarpSum(dot) * scale;
    if (lane == r) mine = dot;
  }
  return mine;
}

// Adds `count` rows to a head's sums, each times the weight in lane r.
template <int Parts>
__device__ __forceinline__ void AddRows(float (&sum_rows)[Parts], const float* rows, int count, int dh, float p,
                                        int lane) {
  for (int r = 0; r < count; ++r) {
    const float weight = __shfl_sync(0xFFFFFFFFu, p, r);
#pragma unroll
    for (int j = 0; j < Parts; ++j) {
      const int i = lane + 32 * j;
      if (i < dh) sum_rows[j] = __fmaf_rn(weight, rows[r * dh + i], sum_rows[j]);
    }
  }
}

// Parts: channels of a lane, Dh <= 32 * Parts. Sums run over tiles in the list's order, for every T and N.
template <int Parts>
__global__ void __launch_bounds__(kSparseAttentionThreads)
    AttendAnyKernel(const float* q, const float* kv, const float* sink, float* out, int num_heads, int dh, float scale,
                    const __grid_constant__ gpu::AttentionView v) {
  extern __shared__ float rows[];  // [kTile, dh]
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y * kHeads + warp;
  gpu::AttendedRows list(v, t);
  if (list.picks != nullptr) list.num_compressed = CountPicks(list);
  const int size = list.size();
  float x[Parts], sum_rows[Parts];
#pragma unroll
  for (int j = 0; j < Parts; ++j) {
    const int i = lane + 32 * j;
    x[j] = head < num_heads && i < dh ? q[(t * num_heads + head) * dh + i] : 0.0f;
    sum_rows[j] = 0;
  }
  float largest = head < num_heads ? sink[head] : 0.0f, sum = 1;
  for (int base = 0; base < size; base += kTile) {
    const int count = min(kTile, size - base);
    __syncthreads();
    for (int r = warp; r < count; r += kHeads) {
      const int i = base + r;
      float* to = rows + r * dh;
      const int64_t position = list.first + i;
      if (i < list.num_window && position >= list.start) {
        const float* own = kv + (list.begin + position - list.start) * dh;
        for (int c = lane; c < dh; c += 32) to[c] = own[c];
      } else if (i < list.num_window) {
        const gpu::RowPointer from = gpu::WindowRow(v.layer, *list.seq, position);
        gpu::DecodeRowWarp(v.layer.window_row, from.data, from.scale, to, lane);
      } else {
        const int w = i - list.num_window;
        const gpu::RowPointer from = gpu::EmittedRowAt(v.layer.main, *list.seq, list.picks ? list.picks[w] : w);
        gpu::DecodeRowWarp(v.layer.main.row, from.data, from.scale, to, lane);
      }
    }
    __syncthreads();
    const float mine = ScoreRows(x, rows, count, dh, scale, lane);
    const float now = fmaxf(largest, WarpMax(mine));
    const float decay = expf(largest - now), p = lane < count ? expf(mine - now) : 0.0f;
    sum = sum * decay + WarpSum(p);
    largest = now;
#pragma unroll
    for (int j = 0; j < Parts; ++j) sum_rows[j] *= decay;
    AddRows(sum_rows, rows, count, dh, p, lane);
  }
  if (head >= num_heads) return;
#pragma unroll
  for (int j = 0; j < Parts; ++j) {
    const int i = lane + 32 * j;
    if (i < dh) out[(t * num_heads + head) * dh + i] = __fdiv_rn(sum_rows[j], sum);
  }
}

void AttendAny(const ExecContext& ctx, const SparseAttentionArgs& a) {
  const int num_heads = static_cast<int>(a.q.dim(1)), dh = static_cast<int>(a.q.dim(2));
  DSV4_CHECK(dh <= kMaxHeadDimOnGpu, "head dim ", dh);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dh)));
  const dim3 grid(static_cast<unsigned>(a.q.dim(0)), static_cast<unsigned>((num_heads + kHeads - 1) / kHeads));
  const auto launch = [&](auto kernel) {
    Launch(ctx, kernel, grid, dim3(kSparseAttentionThreads), static_cast<size_t>(kTile * dh) * sizeof(float), a.q.f32(),
           a.kv.f32(), a.sink.f32(), a.out.f32(), num_heads, dh, scale, gpu::ViewOf(a));
  };
  if (dh <= 128) {
    launch(AttendAnyKernel<4>);
  } else if (dh <= 512) {
    launch(AttendAnyKernel<16>);
  } else {
    launch(AttendAnyKernel<32>);
  }
}

}  // namespace

void SparseAttentionCuda(const ExecContext& ctx, const SparseAttentionArgs& a) {
  if (GpuAttentionKernels(ctx, ShapeOf(a)) != AttentionKernels::kAny) {
    SparseAttentionSm90(ctx, a);
  } else {
    AttendAny(ctx, a);
    if (a.cos_sin) Rope(ctx, {.x = a.out, .cos_sin = a.cos_sin, .inverse = true});
  }
}

}  // namespace dsv4
