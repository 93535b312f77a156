// SparseAttention of prompts on Hopper's tensor cores.
//
// Many tokens read a row of a prompt. So every row that the step may read is decoded once, to FP16 in scratch memory:
// the step's own rows, each sequence's ring and its compressed rows. Then a block processes one token and 64 of its
// heads at a time. Four warps copy the token's rows by index into shared memory (asynchronously, without registers) and
// four warps its queries; two warpgroups multiply:
//   S [64 heads, 64 rows] = Q K^T       the warpgroups divide the rows
//   P = exp2(S - reference), in FP16    through shared memory: both need all of P
//   O [64 heads, 512]    += P V         they divide the channels; V is the same memory as K
// With heads as wgmma's M and 256 channels as its N, a tile's products read 2,200 cycles' worth of shared memory. With
// rows or channels as M and 32 heads as N it was 3,100.
//
// Gathering by index during the multiplication: FlashMLA (github.com/deepseek-ai/FlashMLA, docs).
#include <algorithm>
#include <bit>

#include "device/launch.cuh"
#include "ops/sparse_attention/prompt_multiply_sm90.cuh"
#include "ops/sparse_attention/sparse_attention_sm90.h"

namespace dsv4 {

namespace attend {

namespace {

// Decodes all rows that the step may read, one warp per row, if there is room for all of them.
__global__ void __launch_bounds__(256) DecodeRowsKernel(const __grid_constant__ Params a, __half* rows, int* table,
                                                        int num_own, int num_sequences, int capacity) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  AllowNext();
  WaitForPrevious();
  const int warps = static_cast<int>(gridDim.x) * 8,
            self = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int slots = static_cast<int>(a.v.layer.window_slots);
  const auto num_compressed = [&](const SequenceView& s) {
    return a.ratio_shift >= 0 && s.end > s.begin ? static_cast<int64_t>(s.start + s.end - s.begin) >> a.ratio_shift
                                                 : int64_t{0};
  };
  const int64_t first_compressed = num_own + static_cast<int64_t>(num_sequences) * slots;
  int64_t total = first_compressed;
  for (int s = 0; s < num_sequences; ++s) {
    if (blockIdx.x == 0 && threadIdx.x == 0) table[1 + s] = static_cast<int>(total);
    total += num_compressed(a.v.sequences[s]);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) table[0] = total <= capacity;
  if (total > capacity) return;
  // Warp r % warps decodes row r of the array.
  const auto first_of = [&](int64_t offset) { return static_cast<int>((self + warps - offset % warps) % warps); };
  for (int r = self; r < num_own; r += warps)
    OwnRow(a.kv + static_cast<int64_t>(r) * kDim, lane).Store(rows + static_cast<int64_t>(r) * kDim, lane);
  int64_t offset = first_compressed;
  for (int s = 0; s < num_sequences; ++s) {
    const SequenceView& seq = a.v.sequences[s];
    if (seq.end == seq.begin) continue;
    const int64_t ring = num_own + static_cast<int64_t>(s) * slots;
    const int in_ring = static_cast<int>(min(seq.start, a.v.layer.window_slots));
    for (int r = first_of(ring); r < in_ring; r += warps) {
      CachedRow(a, seq.fixed + a.v.layer.window_offset, static_cast<uint32_t>(slots), static_cast<uint32_t>(r), lane)
          .Store(rows + (ring + r) * kDim, lane);
    }
    const int64_t n = num_compressed(seq);
    for (int64_t r = first_of(offset); r < n; r += warps) {
      CompressedRow(a, seq, static_cast<int>(r), lane).Store(rows + (offset + r) * kDim, lane);
    }
    offset += n;
  }
#endif
}

__global__ void __launch_bounds__(kPromptThreads, 1) AttendPromptKernel(const __grid_constant__ PromptParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  using S = PromptShared;
  AllowNext();
  const uint32_t base = (SharedAddress(raw) + 1023u) & ~1023u, full = base + S::kBarriers;
  uint8_t* smem = raw + (base - SharedAddress(raw));
  if (threadIdx.x == 0) {
    for (int b = 0; b < 4; ++b) {
      BarrierInit(full + 8 * b, kGatherers + kGatherers / 32);
      BarrierInit(full + 32 + 8 * b, kConsumers);  // all threads that read the rows and their masks
    }
    // queries; factors of their scores
    BarrierInit(full + 64, kQueryThreads + (p.q_blocks != nullptr ? kPromptHeads : 0));
    BarrierInit(full + 72, kConsumers);
    BarrierInitFence();
  }
  __syncthreads();
  const int tid = static_cast<int>(threadIdx.x);
  if (tid < kConsumers) {
    sm90::MoreRegisters<192>();
    WaitForPrevious();
    MultiplyPrompt(p, smem, base, tid);
  } else if (tid < kConsumers + kGatherers) {
    sm90::FewerRegisters<40>();
    WaitForPrevious();
    if (p.table[0] != 0) {
      FeedRows<true>(p, smem, base, tid - kConsumers);
    } else {
      FeedRows<false>(p, smem, base, tid - kConsumers);
    }
  } else {
    sm90::FewerRegisters<88>();
    WaitForPrevious();
    FeedQueries(p, base, tid - kConsumers - kGatherers);
  }
#endif
}

}  // namespace

namespace {

// The layout of LaunchPrompt's scratch memory: [table | queries | rows].
struct PromptScratch {
  int items, blocks;
  int64_t table_bytes, query_bytes, capacity;  // capacity: rows that fit
  PromptScratch(const ExecContext& ctx, int64_t num_heads, int64_t num_tokens, int64_t num_sequences)
      : items(static_cast<int>(num_tokens * num_heads / kPromptHeads)),
        blocks(std::min(items, ctx.gpu.multiprocessors)),
        table_bytes((4 * (num_sequences + 1) + 1023) / 1024 * 1024),
        query_bytes(int64_t{blocks} * 4 * kPromptHeads * kDim),
        capacity(std::min<int64_t>((ctx.scratch.bytes - table_bytes - query_bytes) / (2 * kDim), 1 << 30)) {}
};

}  // namespace

void LaunchPrompt(const ExecContext& ctx, const Params& params, int64_t t, int64_t num_sequences,
                  const SparseAttentionArgs& a) {
  const PromptScratch scratch(ctx, params.num_heads, t, num_sequences);
  DSV4_CHECK(scratch.capacity >= 0, "scratch of ", ctx.scratch.bytes, " bytes");
  int* table = reinterpret_cast<int*>(ctx.scratch.data);
  __half* queries = reinterpret_cast<__half*>(ctx.scratch.data + scratch.table_bytes);
  __half* rows = queries + scratch.query_bytes / 2;
  Launch(ctx, DecodeRowsKernel, dim3(static_cast<unsigned>(4 * ctx.gpu.multiprocessors)), dim3(256), 0, params, rows,
         table, static_cast<int>(a.kv.dim(0)), static_cast<int>(num_sequences), static_cast<int>(scratch.capacity));
  const PromptParams p = {.a = params,
                          .rows = rows,
                          .table = table,
                          .q_blocks = a.queries.blocks,
                          .squares = a.queries.squares,
                          .queries = queries,
                          .out_blocks = a.out_blocks,
                          .norm_eps = a.norm_eps * a.queries.unit * a.queries.unit,
                          .num_tokens = static_cast<int>(t),
                          .num_items = scratch.items,
                          .num_own = static_cast<int>(a.kv.dim(0))};
  Launch(ctx, AttendPromptKernel, dim3(static_cast<unsigned>(scratch.blocks)), dim3(kPromptThreads),
         PromptShared::kBytes, p);
}

}  // namespace attend

}  // namespace dsv4
