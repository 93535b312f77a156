// Parts of sparse_attention_prompt_sm90.cu: the shared memory of a block, and the warps that fill it
// (prompt_multiply_sm90.cuh has the warps that multiply). All of a token's rows are in one array of FP16 rows: list
// entry i of a token is row PromptList::Row(i) of the array.
#pragma once

#include "ops/activation_blocks.cuh"
#include "ops/sparse_attention/heads_sm90.cuh"

namespace dsv4::attend {

constexpr int kGatherers = 128, kQueryThreads = 128;  // threads that load rows; threads that load queries
constexpr int kPromptThreads = kConsumers + kGatherers + kQueryThreads;
constexpr int kGatherRows = kHalf / (kGatherers / 32);  // of these, rows per warp

struct PromptParams {
  Params a;
  const __half* rows;  // [own rows Tk | rings, W of each sequence | compressed rows]
  // [0]: 1 if all rows fit, else `rows` holds none; [1 + s]: the index of the first compressed row of sequence s
  const int* table;
  const uint8_t* q_blocks;    // queries in the form of query_blocks.h; null: a.q
  const float* squares;       // sums of squares of each head's blocks
  __half* queries;            // [blocks][2][64, 512]: a block's next queries
  uint8_t* out_blocks;        // the output in the form of activation_blocks.cuh; null: a.out
  float norm_eps;             // of the norm of these queries, times the square of their unit
  int num_tokens, num_items;  // num_tokens: of the queries
  int num_own;                // rows of the step's own tokens, the first ones of `rows`
};

// Offsets in shared memory.
struct PromptShared {
  static constexpr int kTiles = 0;
  static constexpr int kQ = 2 * kTileBytes;
  static constexpr int kP = kQ + kPromptHeads * 2 * kDim;    // [2][64 heads, 64 rows], FP16
  static constexpr int kMax = kP + 2 * kPromptHeads * 128;   // float [2 warpgroups][64]
  static constexpr int kSum = kMax + 2 * kPromptHeads * 4;   // float [2 warpgroups][64]
  static constexpr int kMask = kSum + 2 * kPromptHeads * 4;  // bits [2][2 halves][32]: valid rows
  static constexpr int kNumTiles = kMask + 16;               // int [4]: of the last items
  static constexpr int kFactors = kNumTiles + 16;            // float [2][64]: of scores, of an item's heads
  // full[2][2 halves], empty[2][2], queries full, queries empty
  static constexpr int kBarriers = kFactors + 2 * kPromptHeads * 4;
  static constexpr int kBytes = kBarriers + 80 + 1024;  // the base is aligned to 1,024 by hand
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- rows as FP16 ----

// 16 channels of a row, which lane l of a warp has: 16 l ..
struct Channels {
  uint4 x, y;
  __device__ __forceinline__ void Store(__half* row, int lane) const {
    uint4* at = reinterpret_cast<uint4*>(row) + lane * 2;
    at[0] = x;
    at[1] = y;
  }
};
__device__ __forceinline__ Channels OwnRow(const float* row, int lane) {
  const float4* x = reinterpret_cast<const float4*>(row) + lane * 4;
  const float4 v[4] = {__ldcg(x), __ldcg(x + 1), __ldcg(x + 2), __ldcg(x + 3)};
  return {
      make_uint4(PackF16(v[0].x, v[0].y), PackF16(v[0].z, v[0].w), PackF16(v[1].x, v[1].y), PackF16(v[1].z, v[1].w)),
      make_uint4(PackF16(v[2].x, v[2].y), PackF16(v[2].z, v[2].w), PackF16(v[3].x, v[3].y), PackF16(v[3].z, v[3].w))};
}
// Row `slot` of `capacity` rows at `base`.
__device__ __forceinline__ Channels CachedRow(const Params& a, const uint8_t* base, uint32_t capacity, uint32_t slot,
                                              int lane) {
  const bool bf16 = a.v.layer.window_row.kind == RowFormat::Kind::kBf16;
  if (bf16 || lane >= kFp8Channels / 16) {
    const uint8_t* from = bf16 ? base + slot * 2 * kDim + lane * 32
                               : base + slot * kFp8RowBytes + kFp8Channels + (lane - kFp8Channels / 16) * 32;
    const uint4* x = reinterpret_cast<const uint4*>(from);
    return {Bf16ToF16(__ldcg(x)), Bf16ToF16(__ldcg(x + 1))};
  }
  uint32_t pairs[8];
  DecodeAnyFp8x16(__ldcg(reinterpret_cast<const uint4*>(base + slot * kFp8RowBytes + lane * 16)),
                  __ldcg(base + capacity * kFp8RowBytes + slot * kFp8ScaleBytes + lane / 4), pairs);
  return {make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]), make_uint4(pairs[4], pairs[5], pairs[6], pairs[7])};
}
__device__ __forceinline__ Channels CompressedRow(const Params& a, const SequenceView& seq, int row, int lane) {
  const uint32_t per_page = 1u << a.page_shift;
  return CachedRow(a, seq.pages[row >> a.page_shift] + a.v.layer.main.rows_offset, per_page,
                   static_cast<uint32_t>(row) & (per_page - 1), lane);
}

// ---- feeding ----

// Decodes rows of a tile that did not fit in the array: row r of a warp's is row `row` of lane r, as an index into the
// array that holds none.
__device__ __forceinline__ void DecodeIntoTile(const PromptParams& p, int row, int sequence, uint32_t to, int lane) {
  const SequenceView& seq = p.a.v.sequences[sequence];
  const int slots = static_cast<int>(p.a.v.layer.window_slots), ring = p.num_own + sequence * slots,
            compressed = p.table[1 + sequence];
#pragma unroll 1
  for (int r = 0; r < kGatherRows; ++r) {
    const int of = __shfl_sync(0xFFFFFFFFu, row, r);
    Channels c = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    if (of >= 0 && of < p.num_own) {
      c = OwnRow(p.a.kv + static_cast<int64_t>(of) * kDim, lane);
    } else if (of >= compressed && p.a.ratio_shift >= 0) {
      c = CompressedRow(p.a, seq, of - compressed, lane);
    } else if (of >= 0) {
      c = CachedRow(p.a, seq.fixed + p.a.v.layer.window_offset, static_cast<uint32_t>(slots),
                    static_cast<uint32_t>(of - ring), lane);
    }
    const uint32_t at = (to + static_cast<uint32_t>(lane / 4 * kBlockBytes + lane % 4 * 32)) ^
                        static_cast<uint32_t>(r * 128 + r * 16);
    StoreShared16(at, c.x.x, c.x.y, c.x.z, c.x.w);
    StoreShared16(at ^ 16, c.y.x, c.y.y, c.y.z, c.y.w);
  }
}

struct PromptList {
  int num_window, first_own, size;  // entries from first_own are rows of the step itself
  int first_slot;                   // of window entry 0 in the ring
  // rows of window entry 0, as if it were the step's; of ring slot 0; of compressed row 0
  int own, ring, compressed;
  int sequence;
  const int32_t* picks;

  __device__ __forceinline__ void Load(const PromptParams& p, int64_t t) {
    const Params& a = p.a;
    const int s = a.v.sequence_of[t];
    sequence = s;
    const SequenceView* seq = a.v.sequences + s;
    const int position = static_cast<int>(a.v.positions[t]), window = static_cast<int>(a.v.window);
    const int start = static_cast<int>(seq->start);
    const int slots = static_cast<int>(a.v.layer.window_slots), first = max(0, position - window + 1);
    first_slot = static_cast<int>(static_cast<uint32_t>(first) % static_cast<uint32_t>(slots));
    num_window = position - first + 1;
    first_own = num_window - min(num_window, position + 1 - start);
    own = static_cast<int>(seq->begin) + first - start;
    ring = p.num_own + s * slots;
    size = num_window;
    picks = nullptr;
    if (a.ratio_shift >= 0) {
      compressed = p.table[1 + s];
      const int visible = (position + 1) >> a.ratio_shift;
      if (a.v.topk_idxs != nullptr) picks = a.v.topk_idxs + t * a.v.num_picks - num_window;
      size += picks != nullptr ? min(visible, a.v.num_picks) : visible;
    }
  }
  __device__ __forceinline__ int num_tiles() const { return (size + kTile - 1) / kTile; }
  // The part of entry i's location that is in memory; requested a tile ahead.
  __device__ __forceinline__ int Pick(int i) const {
    if (i >= size) return -1;
    if (i < num_window) return 0;
    return picks != nullptr ? __ldg(picks + i) : i - num_window;
  }
  __device__ __forceinline__ int Row(int i, int pick, int slots) const {
    if (pick < 0) return -1;
    if (i >= num_window) return compressed + pick;
    if (i >= first_own) return own + i;
    const int slot = first_slot + i;
    return ring + (slot >= slots ? slot - slots : slot);
  }
};

__device__ __forceinline__ void CopyAsync16OrZero(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// One arrival of this thread, when its copies so far are complete.
__device__ __forceinline__ void ArriveAfterCopies(uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

// Queries of 16 heads during their conversion to FP16. Lanes 2 m and 2 m + 1 load four neighbouring channels each of
// heads four apart and swap halves, so that each has eight channels of one head: chunk c = tid / 2 of heads First +
// Offset(m).
struct SomeQueries {
  float4 x[16];

  static __device__ __forceinline__ int First(int tid) { return 4 * (tid & 1); }
  static __device__ __forceinline__ constexpr int Offset(int m) { return m / 4 * 8 + m % 4; }

  __device__ __forceinline__ void Load(const float* q, int tid, int batch) {
    const float4* from = reinterpret_cast<const float4*>(q) + batch * 16 * (kDim / 4) + tid;
#pragma unroll
    for (int k = 0; k < 16; ++k) x[k] = __ldcg(from + k * (kDim / 4));
  }
  // Calls store(m, chunk) for the thread's eight chunks.
  template <typename Store>
  __device__ __forceinline__ void ForEach(int tid, const Store& store) const {
    const bool odd = tid & 1;
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const float4& u = x[Offset(m)];
      const float4& v = x[Offset(m) + 4];
      const uint32_t u0 = PackF16(u.x, u.y), u1 = PackF16(u.z, u.w), v0 = PackF16(v.x, v.y), v1 = PackF16(v.z, v.w);
      const uint32_t got0 = __shfl_xor_sync(0xFFFFFFFFu, odd ? u0 : v0, 1),
                     got1 = __shfl_xor_sync(0xFFFFFFFFu, odd ? u1 : v1, 1);
      store(m, odd ? make_uint4(got0, got1, v0, v1) : make_uint4(u0, u1, got0, got1));
    }
  }
};

// Queries are in shared memory as [64 heads, 64 channels] blocks with the 128-byte swizzle.
//
// Loads queries that already are blocks of FP16: every thread copies one 16-byte chunk of every second head. The first
// 64 threads also have a head's norm, which multiplies its scores.
__device__ __forceinline__ void FeedQueryBlocks(const PromptParams& p, uint32_t base, int tid) {
  using S = PromptShared;
  const uint32_t q_full = base + S::kBarriers + 64, q_empty = q_full + 8;
  const int step = static_cast<int>(gridDim.x), first = static_cast<int>(blockIdx.x);
  const int c = tid % (kDim / 8), odd = tid / (kDim / 8), blocks8 = (p.num_tokens + 7) / 8;
  const uint32_t to = base +
                      static_cast<uint32_t>(S::kQ + c / 8 * (kPromptHeads * 128) + odd * 128 + ((c ^ odd) % 8) * 16);
  const uint32_t groups = static_cast<uint32_t>(p.a.num_heads) / kPromptHeads;
  const int64_t of_head = sm90::BlockBegin(kDim / 64, blocks8, 0);
  // A token's 128 bytes of the first block of an item.
  const auto row_of = [&](int w) {
    const uint32_t t = static_cast<uint32_t>(w) / groups, group = static_cast<uint32_t>(w) % groups;
    return p.q_blocks + group * kPromptHeads * of_head + sm90::BlockBegin(0, blocks8, t / 8) + t % 8 * 128;
  };
  const auto factor_of = [&](int w) {
    const float4* from = reinterpret_cast<const float4*>(p.squares +
                                                         (static_cast<int64_t>(w) * kPromptHeads + tid) * (kDim / 64));
    const float4 x = __ldcg(from), y = __ldcg(from + 1);
    const float sum = ((x.x + x.y) + (x.z + x.w)) + ((y.x + y.y) + (y.z + y.w));
    return p.a.scale_log2 * __fdiv_rn(1.0f, __fsqrt_rn(sum * (1.0f / kDim) + p.norm_eps));
  };
#pragma unroll 1
  for (int w = first, item = 0; w < p.num_items; w += step, ++item) {
    const float factor = tid < kPromptHeads ? factor_of(w) : 0;
    if (item > 0) WaitFor(q_empty, (item + 1) & 1);
    const uint32_t t = static_cast<uint32_t>(w) / groups;
    const uint8_t* from = row_of(w) + odd * of_head + sm90::BlockBegin(c / 8, blocks8, 0) +
                          ((static_cast<uint32_t>(c) ^ t) % 8) * 16;
#pragma unroll
    for (int m = 0; m < kPromptHeads / 2; ++m, from += 2 * of_head) {
      CopyAsync16((to ^ static_cast<uint32_t>(m % 4 * (256 + 32))) + static_cast<uint32_t>(m / 4 * 1024), from);
    }
    ArriveAfterCopies(q_full);
    if (tid < kPromptHeads) {
      // The slot's readers have finished the item before the last one: they have released the last one's queries.
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(
                       base + static_cast<uint32_t>(S::kFactors + ((item & 1) * kPromptHeads + tid) * 4)),
                   "f"(factor)
                   : "memory");
      BarrierArrive(q_full);
    }
    if (w + step < p.num_items) {  // prefetches the next ones to L2
      const uint8_t* next = row_of(w + step);
#pragma unroll
      for (int j = 0; j < kPromptHeads * kDim / 64 / kQueryThreads; ++j) {
        const int line = j * kQueryThreads + tid;
        Prefetch(next + sm90::BlockBegin(line, blocks8, 0));
      }
    }
  }
}

// Loads queries in float32: a block's next token's queries are converted to scratch memory while this token is
// computed, and copied from there when the space is free. A thread copies what it stored itself, so that it does not
// wait for another one.
__device__ __forceinline__ void FeedFloatQueries(const PromptParams& p, uint32_t base, int tid) {
  using S = PromptShared;
  constexpr int kBatches = kPromptHeads / 16;
  const uint32_t q_full = base + S::kBarriers + 64, q_empty = q_full + 8;
  const int step = static_cast<int>(gridDim.x), first = static_cast<int>(blockIdx.x);
  const auto queries_of = [&](int w) { return p.a.q + static_cast<int64_t>(w) * (kPromptHeads * kDim); };
  const auto prefetch = [&](int w) {
    if (w >= p.num_items) return;
#pragma unroll
    for (int j = 0; j < kPromptHeads * kDim / 32 / kQueryThreads; ++j)
      Prefetch(queries_of(w) + (j * kQueryThreads + tid) * 32);
  };
  const int head = SomeQueries::First(tid), c = tid / 2;
  const uint32_t to = base +
                      static_cast<uint32_t>(S::kQ + c / 8 * (kPromptHeads * 128) + head * 128 + ((c ^ head) % 8) * 16);
  const auto shared_of = [&](int batch, int m) {  // of chunk m: head % 4 is m % 4
    return (to ^ static_cast<uint32_t>(m % 4 * (128 + 16))) + static_cast<uint32_t>((batch * 16 + m / 4 * 8) * 128);
  };
  uint4* const kept = reinterpret_cast<uint4*>(p.queries + static_cast<int64_t>(first) * (2 * kPromptHeads * kDim)) +
                      head * (kDim / 8) + c;
  const auto kept_of = [&](int item, int batch, int m) {
    return kept + (item & 1) * (kPromptHeads * kDim / 8) + (batch * 16 + SomeQueries::Offset(m)) * (kDim / 8);
  };
  SomeQueries some;
#pragma unroll 1
  for (int batch = 0; batch < kBatches; ++batch) {
    some.Load(queries_of(first), tid, batch);
    if (batch == 0) prefetch(first + step);
    some.ForEach(tid, [&](int m, const uint4& x) { StoreShared16(shared_of(batch, m), x.x, x.y, x.z, x.w); });
  }
  FenceAsyncShared();
  BarrierArrive(q_full);
#pragma unroll 1
  for (int w = first + step, item = 1; w < p.num_items; w += step, ++item) {
    prefetch(w + step);  // prefetches them to L2
#pragma unroll 1
    for (int batch = 0; batch < kBatches; ++batch) {
      some.Load(queries_of(w), tid, batch);
      some.ForEach(tid, [&](int m, const uint4& x) { *kept_of(item, batch, m) = x; });
    }
    WaitFor(q_empty, (item + 1) & 1);
#pragma unroll 1
    for (int batch = 0; batch < kBatches; ++batch) {
#pragma unroll
      for (int m = 0; m < 8; ++m) CopyAsync16(shared_of(batch, m), kept_of(item, batch, m));
    }
    ArriveAfterCopies(q_full);
  }
}

__device__ __forceinline__ void FeedQueries(const PromptParams& p, uint32_t base, int tid) {
  if (p.q_blocks != nullptr) {
    FeedQueryBlocks(p, base, tid);
  } else {
    FeedFloatQueries(p, base, tid);
  }
}

// Copies decoded rows into eight rows of a tile. The row number in lane r is for row r; zeros if it is below 0.
__device__ __forceinline__ void CopyIntoTile(const __half* rows, int row, uint32_t to, int lane) {
  const uint32_t to_lane = to + static_cast<uint32_t>(lane / 8 * kBlockBytes + lane % 8 * 16);
#pragma unroll
  for (int r = 0; r < kGatherRows; ++r) {
    const int from_row = __shfl_sync(0xFFFFFFFFu, row, r);
    const __half* from = rows + static_cast<int64_t>(max(from_row, 0)) * kDim + lane * 8;
    const uint32_t bytes = from_row < 0 ? 0 : 16, at = to_lane ^ static_cast<uint32_t>(r * 128 + r * 16);
    CopyAsync16OrZero(at, from, bytes);
    CopyAsync16OrZero(at + 4 * kBlockBytes, from + kDim / 2, bytes);
  }
}

// Warp w copies rows 8 w .. of each half of a tile, one row at a time. The 16-byte chunk c of row r of a block is
// stored at chunk c ^ r % 8.
template <bool kDecoded>
__device__ __forceinline__ void FeedRows(const PromptParams& p, uint8_t* smem, uint32_t base, int tid) {
  using S = PromptShared;
  const Params& a = p.a;
  const int warp = __shfl_sync(0xFFFFFFFFu, tid / 32, 0), lane = tid % 32,
            slots = static_cast<int>(a.v.layer.window_slots), step = static_cast<int>(gridDim.x);
  const uint32_t groups = static_cast<uint32_t>(a.num_heads) / kPromptHeads;
  const uint32_t full = base + S::kBarriers;  // the empty barriers are 32 bytes further
  const uint32_t to_warp = base + static_cast<uint32_t>(S::kTiles + warp * kGatherRows * 128);
  const auto token_of = [&](int w) { return static_cast<int64_t>(static_cast<uint32_t>(w) / groups); };
  int count = 0;
  PromptList list;
  list.Load(p, token_of(static_cast<int>(blockIdx.x)));
#pragma unroll 1
  for (int w = static_cast<int>(blockIdx.x), item = 0; w < p.num_items; w += step, ++item) {
    const int num_tiles = list.num_tiles(), next = w + step;
    int i = warp * kGatherRows + lane % 8 + lane / 8 % 2 * kHalf;  // lanes 0 .. 7 and 8 .. 15: a row of each half
    int row = list.Row(i, list.Pick(i), slots);
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile, ++count) {
      const uint32_t buffer = static_cast<uint32_t>(count) & 1;
      const int pick = list.Pick(i + kTile);
      const uint32_t valid = __ballot_sync(0xFFFFFFFFu, row >= 0);
#pragma unroll 1
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t bar = full + 16 * buffer + 8 * half, to = to_warp + buffer * kTileBytes + half * (kHalf * 128);
        const int of_half = __shfl_sync(0xFFFFFFFFu, row, static_cast<int>(half * 8) + lane % 8);
        if (count >= 2) WaitFor(bar + 32, (count / 2 + 1) & 1);
        if constexpr (kDecoded) {
          CopyIntoTile(p.rows, of_half, to, lane);
          ArriveAfterCopies(bar);
        } else {
          DecodeIntoTile(p, of_half, list.sequence, to, lane);
          FenceAsyncShared();
          BarrierArrive(bar);
        }
        if (lane == 0) {
          smem[S::kMask + buffer * 8 + half * 4 + warp] = static_cast<uint8_t>(valid >> (8 * half));
          // The slot's last reader has released a tile since, and so the slot.
          if (tile == 0 && half == 0 && warp == 0) reinterpret_cast<int*>(smem + S::kNumTiles)[item & 3] = num_tiles;
          BarrierArrive(bar);
        }
      }
      i += kTile;
      row = list.Row(i, pick, slots);
      if (tile == 0 && next < p.num_items) {
        if (tid < a.v.num_picks / 32) Prefetch(a.v.topk_idxs + token_of(next) * a.v.num_picks + tid * 32);
        if (a.cos_sin != nullptr && tid < kPairs / 16) Prefetch(a.cos_sin + token_of(next) * kPairs + tid * 16);
      }
    }
    if (next < p.num_items) list.Load(p, token_of(next));
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace dsv4::attend
