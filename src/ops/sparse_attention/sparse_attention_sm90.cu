// SparseAttention on Hopper's tensor cores.
//
// A block processes one token and kHeads of its heads (all heads share the rows, and a row is key and value). Rows come
// in tiles of 64, in the list's order. Eight warps gather a tile by index, decode it to FP16 and store it in shared
// memory; two warpgroups multiply:
//   S^T [64 rows, heads] = K Q^T        the warpgroups divide the heads
//   P = exp2(S - the tile's own maximum + 14), in FP16
//   O^T [512, heads]     = V^T P^T      they divide the channels (prompts: the heads again); V is the same memory as K
// Every tile is summed from zero and then merged into the total with float32 factors, tile after tile. A tile's sums
// depend only on the token's own rows and q. The merge is the same arithmetic whether one block processes all tiles or
// each tile has its own block and AttentionMergeKernel follows. So a token's bits depend neither on the number of
// tokens of the step nor on the number of heads of a block. Prompts of models whose heads come in blocks of 64 have
// their own kernels (sparse_attention_prompt_sm90.cu). Their bits differ, and also depend only on the token.
//
// Gathering by index during the multiplication: FlashMLA (github.com/deepseek-ai/FlashMLA,
// docs/20250929-hopper-fp8-sparse-deep-dive.md). wgmma operands: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate".
#include "ops/sparse_attention/sparse_attention_sm90.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/launch.cuh"
#include "ops/sparse_attention/multiply_sm90.cuh"

namespace dsv4 {

namespace attend {

namespace {

template <int kHeads>
__device__ __forceinline__ uint8_t* PrepareShared(uint8_t* raw, uint32_t& base) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  base = (SharedAddress(raw) + 1023u) & ~1023u;
  const uint32_t full = base + Shared<kHeads>::kBarriers;
  if (threadIdx.x == 0) {
    for (int b = 0; b < 2; ++b) {
      BarrierInit(full + 8 * b, kProducers / 4);   // the lanes that write `valid`
      BarrierInit(full + 16 + 8 * b, kConsumers);  // all threads that read it
    }
    BarrierInitFence();
  }
  return raw + (base - SharedAddress(raw));
#else
  base = 0;
  return raw;
#endif
}

template <int kHeads>
__global__ void __launch_bounds__(kThreads, 1) AttendKernel(const __grid_constant__ Params a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  using S = Shared<kHeads>;
  AllowNext();
  uint32_t base;
  uint8_t* smem = PrepareShared<kHeads>(raw, base);
  const uint32_t full = base + S::kBarriers, empty = full + 16;
  const int64_t t = blockIdx.x;
  const RowList list(a, t);
  const int num_tiles = list.num_tiles();
  const bool split = a.slots > 0 && num_tiles <= a.slots;
  const int first = blockIdx.z, step = split ? gridDim.z : 1;
  if (first >= (split ? num_tiles : 1)) return;
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if constexpr (kHeads > 16) sm90::FewerRegisters<80>();
    Gather(a, list, first, step, num_tiles, base + S::kTiles, smem + S::kValid, full, empty,
           threadIdx.x / 32 - kConsumers / 32, threadIdx.x % 32, reinterpret_cast<const uint8_t**>(smem + S::kPages));
  } else {
    if constexpr (kHeads > 16) sm90::MoreRegisters<176>();
    WaitForPrevious();
    Multiply<kHeads>(a, t, static_cast<int>(blockIdx.y) * kHeads, split, first, step, num_tiles, smem, base,
                     threadIdx.x);
  }
#endif
}

// Merges the tiles of one head of one token. The first `ahead` tiles are requested even if they do not exist (data
// after the last tile is not used).
__global__ void __launch_bounds__(kDim / 4) AttentionMergeKernel(const __grid_constant__ Params a, int ahead) {
  constexpr int kAhead = 10;
  AllowNext();
  const int64_t t = blockIdx.y, head = blockIdx.x;
  const float sink = a.sink[head];
  const int num_tiles = RowList(a, t).num_tiles();
  WaitForPrevious();
  const int64_t first = t * a.slots * a.num_heads + head;
  float2 ml[kAhead];
  float4 o[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i >= ahead) continue;
    ml[i] = a.partial_ml[first + i * a.num_heads];
    o[i] = reinterpret_cast<const float4*>(a.partial + (first + i * a.num_heads) * kDim)[threadIdx.x];
  }
  if (num_tiles > a.slots) return;
  float4 total = make_float4(0, 0, 0, 0);
  float largest = -INFINITY, sum = 0;
  const auto merge = [&](const float2& of_tile, const float4& v) {
    const float2 f = MergeFactors(largest, of_tile.x);
    sum = Merge(sum, of_tile.y, f);
    total = make_float4(Merge(total.x, v.x, f), Merge(total.y, v.y, f), Merge(total.z, v.z, f), Merge(total.w, v.w, f));
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < ahead && i < num_tiles) merge(ml[i], o[i]);
  }
#pragma unroll 4
  for (int tile = ahead; tile < num_tiles; ++tile) {
    const int64_t at = first + static_cast<int64_t>(tile) * a.num_heads;
    merge(a.partial_ml[at], reinterpret_cast<const float4*>(a.partial + at * kDim)[threadIdx.x]);
  }
  const float f = OutputFactor(largest, sum, sink);
  float4 y = make_float4(total.x * f, total.y * f, total.z * f, total.w * f);
  if (a.cos_sin != nullptr && threadIdx.x >= kRotated / 4) {
    const float4 cs = reinterpret_cast<const float4*>(a.cos_sin + t * kPairs)[threadIdx.x - kRotated / 4];
    y = make_float4(
        RotatedBack(y.x, y.y, make_float2(cs.x, cs.y), false), RotatedBack(y.y, y.x, make_float2(cs.x, cs.y), true),
        RotatedBack(y.z, y.w, make_float2(cs.z, cs.w), false), RotatedBack(y.w, y.z, make_float2(cs.z, cs.w), true));
  }
  reinterpret_cast<float4*>(a.out + (t * a.num_heads + head) * kDim)[threadIdx.x] = y;
}

__global__ void __launch_bounds__(256) ToF16Kernel(const float4* x, uint2* y, int64_t n) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= n) return;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const float4 v = x[i];
  y[i] = make_uint2(PackF16(v.x, v.y), PackF16(v.z, v.w));
#endif
}

int Log2(int64_t x) { return static_cast<int>(std::bit_width(static_cast<uint64_t>(x))) - 1; }  // -1 of 0

template <int kHeads>
void LaunchAttend(const ExecContext& ctx, const Params& p, int64_t t, int splits) {
  Launch(ctx, AttendKernel<kHeads>,
         dim3(static_cast<unsigned>(t), static_cast<unsigned>(p.num_heads / kHeads), static_cast<unsigned>(splits)),
         dim3(kThreads), Shared<kHeads>::kBytes, p);
}

}  // namespace

}  // namespace attend

void SparseAttentionSm90(const ExecContext& ctx, const SparseAttentionArgs& a) {
  const int64_t t = a.q.dim(0), heads = a.q.dim(1);
  attend::Params p = {
      .q = a.q.f32(),
      .kv = a.kv.f32(),
      .sink = a.sink.f32(),
      .out = a.out.f32(),
      .cos_sin = a.cos_sin ? reinterpret_cast<const float2*>(a.cos_sin.f32()) : nullptr,
      .num_heads = static_cast<int>(heads),
      .ratio_shift = attend::Log2(a.cache.layer->main.ratio),
      .page_shift = attend::Log2(a.cache.layer->main.rows_per_page),
      .scale_log2 = static_cast<float>(1.44269504088896341 / std::sqrt(static_cast<double>(attend::kDim))),
      .slots_inverse = 0xFFFFFFFFu / static_cast<uint32_t>(a.cache.layer->window_slots),
      .v = gpu::ViewOf(a)};
  if (GpuAttentionKernels(ctx, ShapeOf(a)) == AttentionKernels::kPrompt) {
    attend::LaunchPrompt(ctx, p, t, a.cache.num_sequences, a);
    return;
  }
  if (t <= attend::kMaxSplitTokens) {
    // One block per tile, up to the size of the scratch memory. With longer lists (a million rows and more) one block
    // processes several tiles.
    const int64_t slot_bytes = t * heads * (attend::kDim * 4 + 8);
    p.slots = static_cast<int>(std::min<int64_t>(4096, ctx.scratch.bytes / slot_bytes));
    p.partial = reinterpret_cast<float*>(ctx.scratch.data);
    p.partial_ml = reinterpret_cast<float2*>(p.partial + t * p.slots * heads * attend::kDim);
    const int64_t groups = t * heads / 16;
    // Lists of the largest length: the window and the picks, or a few tiles of a layer that reads every row.
    const int64_t window = a.cache.window, longest = p.ratio_shift < 0 ? window
                                                     : a.topk_idxs     ? window + a.topk_idxs.dim(1)
                                                                       : window + 4 * attend::kTile;
    const int tiles = static_cast<int>((longest + attend::kTile - 1) / attend::kTile);
    const int splits = static_cast<int>(
        std::clamp<int64_t>(ctx.gpu.multiprocessors / groups, 1, p.ratio_shift >= 0 && !a.topk_idxs ? 32 : tiles));
    attend::LaunchAttend<16>(ctx, p, t, splits);
    Launch(ctx, attend::AttentionMergeKernel, dim3(static_cast<unsigned>(heads), static_cast<unsigned>(t)),
           dim3(attend::kDim / 4), 0, p, std::min({tiles, 10, p.slots}));
    return;
  }
  const int64_t own = a.kv.dim(0);
  if (t > attend::kReadOften && own * attend::kDim * 2 <= ctx.scratch.bytes) {
    p.kv16 = reinterpret_cast<const __half*>(ctx.scratch.data);
    const int64_t n = own * attend::kDim / 4;
    Launch(ctx, attend::ToF16Kernel, dim3(static_cast<unsigned>((n + 255) / 256)), dim3(256), 0,
           reinterpret_cast<const float4*>(a.kv.f32()), reinterpret_cast<uint2*>(ctx.scratch.data), n);
  }
  if (heads % 32 == 0) {
    attend::LaunchAttend<32>(ctx, p, t, 1);
  } else {
    attend::LaunchAttend<16>(ctx, p, t, 1);
  }
}

}  // namespace dsv4
