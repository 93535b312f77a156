// Parts of sparse_attention_sm90.cu: shapes, a token's list of rows, and the warps that gather the rows into shared
// memory.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "device/barrier.cuh"
#include "device/launch.cuh"
#include "ops/sparse_attention/rows.cuh"
#include "ops/wgmma.cuh"

namespace dsv4::attend {

constexpr int kDim = 512;
constexpr int kTile = 64;                 // rows
constexpr int kBlockBytes = kTile * 128;  // 64 channels of a tile
constexpr int kTileBytes = 8 * kBlockBytes;
constexpr int kFp8Channels = 448;
constexpr int kPairs = 32, kRotated = kDim - 2 * kPairs;  // RoPE
constexpr int kFp8RowBytes = 576;                         // 448 + 2 * 64
constexpr int kFp8ScaleBytes = 8;
constexpr int kConsumers = 256, kProducers = 256, kThreads = kConsumers + kProducers;
constexpr int kMaxSplitTokens = 16;  // up to this many tokens a tile has its own block
constexpr int kPromptHeads = 64;     // heads of a block in the kernels for prompts
// a step of more tokens than this converts its own rows once, before they are read
constexpr int kReadOften = 64;
constexpr int kKeptPages = 512;  // entries of a token's page table in shared memory, in decode

struct Params {
  const float* q;
  const float* kv;
  const __half* kv16;  // kv in FP16, or null
  const float* sink;
  float* out;
  const float2* cos_sin;  // [T, kPairs], or null: out is not rotated back
  float* partial;         // [T, slots, N, 512]: sums of single tiles
  float2* partial_ml;     // [T, slots, N]: their maximum (times log2 e) and sum
  int slots;              // 0: one block processes all tiles
  int num_heads;
  int ratio_shift, page_shift;  // log2 of the compression ratio and of the rows in a page
  float scale_log2;             // Dh^-1/2 log2 e
  uint32_t slots_inverse;       // (2^32 - 1) / slots of the ring
  gpu::AttentionView v;
};

// position % slots without a division, because everything that needs the rows' addresses would wait for the division.
__device__ __forceinline__ uint32_t RingSlot(const Params& a, uint32_t position) {
  const auto slots = static_cast<uint32_t>(a.v.layer.window_slots);
  const uint32_t slot = position - __umulhi(position, a.slots_inverse) * slots;  // or one more ring length
  return slot >= slots ? slot - slots : slot;
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The factors of the earlier sums and of a tile, for their common maximum.
__device__ __forceinline__ float2 MergeFactors(float& largest, float of_tile) {
  const float now = fmaxf(largest, of_tile);
  const float2 f = make_float2(Exp2(largest - now), Exp2(of_tile - now));
  largest = now;
  return f;
}
__device__ __forceinline__ float Merge(float total, float of_tile, float2 f) {
  return __fmaf_rn(of_tile, f.y, __fmul_rn(total, f.x));
}
// The factor that turns a head's sum into its output. The sink joins the denominator once, as a logit of its own.
__device__ __forceinline__ float OutputFactor(float largest, float sum, float sink) {
  const float s = sink * 1.44269504088896341f, m = fmaxf(largest, s), w = Exp2(largest - m);
  return __fdiv_rn(w, __fmaf_rn(sum, w, Exp2(s - m)));
}

// The rows of one token, in few registers: positions and row numbers fit in 32 bits. A row is found in three steps, so
// that a tile's loads of one step are in flight while the previous tile executes the next step.
struct RowList {
  const uint8_t* ring;
  uint8_t* const* pages;
  const int32_t* picks;
  const uint8_t* own;  // the row of window entry 0, as if it were in this step
  int first, num_window, num_own, size;
  int first_slot;  // of window entry 0 in the ring
  int num_old;     // compressed rows that existed before this step

  __device__ __forceinline__ RowList(const Params& a, int64_t t) {
    const SequenceView* seq = a.v.sequences + a.v.sequence_of[t];
    const int position = static_cast<int>(a.v.positions[t]), window = static_cast<int>(a.v.window);
    ring = seq->fixed + a.v.layer.window_offset;
    pages = seq->pages;
    picks = a.v.topk_idxs != nullptr ? a.v.topk_idxs + t * a.v.num_picks : nullptr;
    first = max(0, position - window + 1);
    first_slot = static_cast<int>(RingSlot(a, static_cast<uint32_t>(first)));
    num_window = position - first + 1;
    const int start = static_cast<int>(seq->start);
    num_own = min(num_window, position + 1 - start);
    size = num_window;
    num_old = 0;
    if (a.ratio_shift >= 0) {
      num_old = start >> a.ratio_shift;
      const int visible = (position + 1) >> a.ratio_shift;
      size += picks != nullptr ? min(visible, a.v.num_picks) : visible;
    }
    const int64_t row = seq->begin + first - start;
    own = a.kv16 != nullptr ? reinterpret_cast<const uint8_t*>(a.kv16 + row * kDim)
                            : reinterpret_cast<const uint8_t*>(a.kv + row * kDim);
  }
  __device__ __forceinline__ int num_tiles() const { return (size + kTile - 1) / kTile; }
  // Step 1: the compressed row of list entry i; -1: none.
  __device__ __forceinline__ int RowOf(int i) const {
    if (i >= size) return -1;
    if (i < num_window) return 0;
    return picks != nullptr ? picks[i - num_window] : i - num_window;
  }
  // Whether no kernel of this step writes entry i's row or the data that locates it (docs/dev/kernels/README.md).
  __device__ __forceinline__ bool IsOld(int i) const {
    return i < num_window ? i < num_window - num_own
                          : picks == nullptr && i - num_window < min(num_old, size - num_window);
  }
  // Entries of the page table that the list may need.
  __device__ __forceinline__ int num_pages(const Params& a) const {
    if (a.ratio_shift < 0) return 0;
    return (((first + num_window) >> a.ratio_shift) + (1 << a.page_shift) - 1) >> a.page_shift;
  }
  // Step 2: the memory of the row.
  __device__ __forceinline__ const uint8_t* PageOf(const Params& a, int i, int row) const {
    if (row < 0 || i < num_window) return ring;
    return pages[row >> a.page_shift];
  }
};

// Prompts: first every row is decoded, then a block gathers FP16 (sparse_attention_prompt_sm90.cu).
void LaunchPrompt(const ExecContext& ctx, const Params& p, int64_t num_tokens, int64_t num_sequences,
                  const SparseAttentionArgs& a);

// Offsets in shared memory.
template <int kHeads>
struct Shared {
  static constexpr int kTiles = 0;
  static constexpr int kQ = 2 * kTileBytes;
  static constexpr int kP = kQ + kHeads * 2 * kDim;
  static constexpr int kFactors = kP + 2 * kHeads * 128;  // float2 [2][kHeads]
  static constexpr int kMax = kFactors + 2 * kHeads * 8;  // float [2 warpgroups][4 warps][kHeads / 2]
  static constexpr int kSum = kMax + 4 * kHeads * 4;
  static constexpr int kValid = kSum + 4 * kHeads * 4;           // uint8 [2][kTile]
  static constexpr int kBarriers = kValid + 2 * kTile;           // full[2], empty[2]
  static constexpr int kPages = kBarriers + 32;                  // pointers [kKeptPages]
  static constexpr int kBytes = kPages + 8 * kKeptPages + 1024;  // the base is aligned to 1,024 by hand
};

// One channel of a pair, rotated by minus its angle: `x` is the channel, `other` its partner; `odd`: x is the second.
// The same as Rope.
__device__ __forceinline__ float RotatedBack(float x, float other, float2 cos_sin, bool odd) {
  const float c = cos_sin.x, s = -cos_sin.y;
  return odd ? __fadd_rn(__fmul_rn(other, s), __fmul_rn(x, c)) : __fsub_rn(__fmul_rn(x, c), __fmul_rn(other, s));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d[64, kN] = A B + (add ? d : 0), both operands in shared memory. B is K-major; A is M-major if kMMajor.
template <int kN>
struct Product;
#define DSV4_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4_PRODUCT(N, LIST, A, B, ADD, MAJOR, ...)                                                      \
  template <>                                                                                             \
  struct Product<N> {                                                                                     \
    template <int kMMajor>                                                                                \
    static __device__ __forceinline__ void Run(float* d, uint64_t a, uint64_t b, uint32_t add) {          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
                   "k16.f32.f16.f16 {" LIST "}, %" #A ", %" #B ", p, 1, 1, %" #MAJOR ", 0;\n}"            \
                   : __VA_ARGS__                                                                          \
                   : "l"(a), "l"(b), "r"(add), "n"(kMMajor));                                             \
    }                                                                                                     \
  };
#define DSV4_L4 "%0, %1, %2, %3"
#define DSV4_L8 DSV4_L4 ", %4, %5, %6, %7"
#define DSV4_L16 DSV4_L8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DSV4_L32 DSV4_L16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
DSV4_PRODUCT(8, DSV4_L4, 4, 5, 6, 7, DSV4_F4(0))
DSV4_PRODUCT(16, DSV4_L8, 8, 9, 10, 11, DSV4_F4(0), DSV4_F4(4))
DSV4_PRODUCT(32, DSV4_L16, 16, 17, 18, 19, DSV4_F4(0), DSV4_F4(4), DSV4_F4(8), DSV4_F4(12))
DSV4_PRODUCT(64, DSV4_L32, 32, 33, 34, 35, DSV4_F4(0), DSV4_F4(4), DSV4_F4(8), DSV4_F4(12), DSV4_F4(16), DSV4_F4(20),
             DSV4_F4(24), DSV4_F4(28))
#undef DSV4_PRODUCT
#undef DSV4_F4
#undef DSV4_L4
#undef DSV4_L8
#undef DSV4_L16
#undef DSV4_L32

// BarrierWaitOrTrap without the trap: with a trap in the consumers' loop ptxas (13.0) gives their branch the registers
// of the launch bound instead of setmaxnreg's. A barrier that never completes ends in wrong numbers, not in a hung GPU.
__device__ __forceinline__ void WaitFor(uint32_t bar, uint32_t parity) {
  for (uint32_t tries = 0; tries < (1u << 24) && !BarrierTryWait(bar, parity); ++tries) {
  }
}

// ---- gathering ----

enum Kind : int { kNone, kFp8Row, kBf16Row, kF16Row, kF32Row };

struct Source {
  const uint8_t* data;  // of the quarter's first 16 channels; the next ones are 64 channels further
  const uint8_t* scale;
  int kind;
};

// Step 3.
__device__ __forceinline__ Source Locate(const Params& a, const RowList& list, int i, int row, const uint8_t* page,
                                         int part) {
  if (row < 0) return {nullptr, nullptr, kNone};
  if (i < list.num_window && i >= list.num_window - list.num_own) {
    const bool f16 = a.kv16 != nullptr;
    return {list.own + static_cast<int64_t>(i) * (f16 ? 2 * kDim : 4 * kDim) + part * (f16 ? 32 : 64), nullptr,
            f16 ? kF16Row : kF32Row};
  }
  const bool window = i < list.num_window;
  const uint32_t capacity = window ? static_cast<uint32_t>(a.v.layer.window_slots) : 1u << a.page_shift;
  uint32_t slot = window ? static_cast<uint32_t>(list.first_slot + i) : static_cast<uint32_t>(row) & (capacity - 1);
  if (slot >= capacity) slot -= capacity;
  const uint8_t* base = page + (window ? 0 : a.v.layer.main.rows_offset);
  if (a.v.layer.window_row.kind == RowFormat::Kind::kBf16)
    return {base + slot * 2 * kDim + part * 32, nullptr, kBf16Row};
  return {base + slot * kFp8RowBytes + part * 16, base + capacity * kFp8RowBytes + slot * kFp8ScaleBytes, kFp8Row};
}

__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void StoreShared16(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ void Prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// ---- operands are FP16: beyond +-65,504 they saturate, a NaN stays NaN ----

__device__ __forceinline__ uint32_t PackF16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// A pair of BF16; exact if at least 2^-14.
__device__ __forceinline__ uint32_t Bf16ToF16(uint32_t pair) {
  return PackF16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}
__device__ __forceinline__ uint4 Bf16ToF16(const uint4& x) {
  return make_uint4(Bf16ToF16(x.x), Bf16ToF16(x.y), Bf16ToF16(x.z), Bf16ToF16(x.w));
}

// 16 E4M3 codes times a power of two, as pairs.
__device__ __forceinline__ void DecodeFp8x16(const uint4& codes, uint32_t scale, uint32_t (&out)[8]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  const float s = __uint_as_float(scale << 23);
  const uint32_t factor = PackF16(s, s);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    asm("{\n.reg .b32 x;\ncvt.rn.f16x2.e4m3x2 x, %1;\nmul.rn.f16x2 %0, x, %2;\n}"
        : "=r"(out[i])
        : "h"(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16))), "r"(factor));
  }
}

// The same with any scale.
__device__ __forceinline__ void DecodeAnyFp8x16(const uint4& codes, uint32_t scale, uint32_t (&out)[8]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  const float s = gpu::E8m0ToF32(static_cast<uint8_t>(scale));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t two = words[i / 2] >> (i % 2 * 16);
    out[i] = PackF16(gpu::E4m3ToF32(static_cast<uint8_t>(two)) * s, gpu::E4m3ToF32(static_cast<uint8_t>(two >> 8)) * s);
  }
}

// A quarter of an FP8 row: 7 times 16 codes, one of every scale's block, and two pieces of its BF16 tail.
struct RawRow {
  uint4 codes[7], tail[2];
  uint2 scales;

  // A scale above 2^7 (its largest values exceed FP16's range), below 2^-24 (FP16 cannot hold the scale), or NaN.
  __device__ __forceinline__ bool Unusual() const {
    const uint32_t x = scales.x, y = scales.y, low_x = x & 0x7F7F7F7Fu, low_y = y & 0x7F7F7F7Fu;
    const uint32_t above = ((low_x + 0x79797979u) & x) | ((low_y + 0x79797979u) & y);                    // 135 ..
    const uint32_t below = ~((low_x + 0x19191919u) | x) | (~((low_y + 0x19191919u) | y) & 0x00FFFFFFu);  // .. 102
    return ((above | below) & 0x80808080u) != 0;
  }
  __device__ __forceinline__ void LoadCodes(const Source& s, int b) {
    if (s.kind == kFp8Row) codes[b] = __ldcg(reinterpret_cast<const uint4*>(s.data + 64 * b));
  }
  __device__ __forceinline__ void LoadTail(const Source& s) {
    if (s.kind != kFp8Row) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) tail[i] = __ldcg(reinterpret_cast<const uint4*>(s.data + kFp8Channels + 64 * i));
  }
  __device__ __forceinline__ void LoadScales(const Source& s) {
    if (s.kind == kFp8Row) scales = __ldcg(reinterpret_cast<const uint2*>(s.scale));
  }
  __device__ __forceinline__ void Load(const Source& s) {
    LoadScales(s);
#pragma unroll
    for (int b = 0; b < 7; ++b) LoadCodes(s, b);
    LoadTail(s);
  }
};

// Loads a row of the step itself (one in a decode step) into L1, because it will be read piece by piece.
__device__ __forceinline__ void TouchF32(const Source& s) {
  if (s.kind != kF32Row) return;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    asm volatile("{\n.reg .f32 x;\nld.global.ca.f32 x, [%0];\n}" ::"l"(s.data + 512 * j) : "memory");
}

// Copies a quarter of a row of any kind from memory: channels 64 b + 16 part .. go to to + b blocks (8) and (to ^ 16) +
// b blocks (8). Channels 8 (part + 4 j) .. of an FP8 row's BF16 tail go to tail and tail ^ 64. kAtOnce blocks of a
// float32 row are loaded at once.
template <int kAtOnce>
__device__ __forceinline__ void CopyRow(const Source& s, uint2 scales, uint32_t to, uint32_t tail) {
  if (s.kind == kF16Row) {
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      CopyAsync16(to + b * kBlockBytes, s.data + 128 * b);
      CopyAsync16((to ^ 16) + b * kBlockBytes, s.data + 128 * b + 16);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    return;
  }
  if (s.kind == kF32Row) {
#pragma unroll 1
    for (int b = 0; b < 8; b += kAtOnce) {
      float4 v[4 * kAtOnce];
#pragma unroll
      for (int j = 0; j < 4 * kAtOnce; ++j)
        v[j] = *reinterpret_cast<const float4*>(s.data + 256 * (b + j / 4) + 16 * (j % 4));
#pragma unroll
      for (int j = 0; j < 4 * kAtOnce; j += 2) {
        StoreShared16((j % 4 == 0 ? to : to ^ 16) + (b + j / 4) * kBlockBytes, PackF16(v[j].x, v[j].y),
                      PackF16(v[j].z, v[j].w), PackF16(v[j + 1].x, v[j + 1].y), PackF16(v[j + 1].z, v[j + 1].w));
      }
    }
    return;
  }
#pragma unroll 1
  for (int b = 0; b < 8; ++b) {
    uint4 x = make_uint4(0, 0, 0, 0), y = x;
    uint32_t to0 = to + b * kBlockBytes, to1 = to0 ^ 16;
    if (s.kind == kBf16Row) {
      x = Bf16ToF16(__ldcg(reinterpret_cast<const uint4*>(s.data + 128 * b)));
      y = Bf16ToF16(__ldcg(reinterpret_cast<const uint4*>(s.data + 128 * b + 16)));
    } else if (s.kind == kFp8Row && b == 7) {
      x = Bf16ToF16(__ldcg(reinterpret_cast<const uint4*>(s.data + kFp8Channels)));
      y = Bf16ToF16(__ldcg(reinterpret_cast<const uint4*>(s.data + kFp8Channels + 64)));
      to0 = tail, to1 = tail ^ 64;
    } else if (s.kind == kFp8Row) {  // an unusual scale
      const float scale = gpu::E8m0ToF32(static_cast<uint8_t>((b < 4 ? scales.x : scales.y) >> (b % 4 * 8)));
      const auto pair = [&](int i) {
        return PackF16(gpu::E4m3ToF32(s.data[64 * b + i]) * scale, gpu::E4m3ToF32(s.data[64 * b + i + 1]) * scale);
      };
      x = make_uint4(pair(0), pair(2), pair(4), pair(6));
      y = make_uint4(pair(8), pair(10), pair(12), pair(14));
    }
    StoreShared16(to0, x.x, x.y, x.z, x.w);
    StoreShared16(to1, y.x, y.y, y.z, y.w);
  }
}

// Stores a quarter of an FP8 row from registers, and loads the next row into them as soon as they are free.
__device__ __forceinline__ void StoreFp8Row(RawRow& raw, uint2 scales, const Source& next, uint32_t to, uint32_t tail) {
#pragma unroll
  for (int b = 0; b < 7; ++b) {
    uint32_t x[8];
    DecodeFp8x16(raw.codes[b], __byte_perm(scales.x, scales.y, b) & 0xFF, x);
    raw.LoadCodes(next, b);
    StoreShared16(to + b * kBlockBytes, x[0], x[1], x[2], x[3]);
    StoreShared16((to ^ 16) + b * kBlockBytes, x[4], x[5], x[6], x[7]);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint4 x = Bf16ToF16(raw.tail[j]);
    StoreShared16(tail ^ (64 * j), x.x, x.y, x.z, x.w);
  }
  raw.LoadTail(next);
}

// Warp `warp` of eight fills rows 8 warp .. 8 warp + 7 of every tile. Lane 4 r + p has a quarter of row r: channels 16
// p .. 16 p + 15 of every 64. The 16-byte chunk c of row r of a block is stored at chunk c ^ r, so eight lanes hit all
// banks. Registers that a tile frees receive the next tile's bytes at once. This function waits for the previous
// kernel, after it has queued the loads of older data.
__device__ __forceinline__ void Gather(const Params& a, const RowList& list, int first, int step, int num_tiles,
                                       uint32_t tiles, uint8_t* valid, uint32_t full, uint32_t empty, int warp,
                                       int lane, const uint8_t** kept) {
  const int r = lane / 4, part = lane % 4, stride = step * kTile;
  int i = first * kTile + warp * 8 + r;
  Source source;
  RawRow raw;
  // The pages' addresses are loaded before the wait, and not again after it.
  const int pages = min(list.num_pages(a), kKeptPages);
  for (int p = warp * 32 + lane; p < pages; p += kProducers) kept[p] = list.pages[p];
  sm90::NamedBarrier(4, kProducers);
  const auto page_of = [&](int entry, int row) -> const uint8_t* {
    if (row >= 0 && entry >= list.num_window && row >> a.page_shift < kKeptPages) return kept[row >> a.page_shift];
    return list.PageOf(a, entry, row);
  };
  const auto load = [&](int row) {
    source = Locate(a, list, i, row, page_of(i, row), part);
    raw.Load(source);
  };
  const bool old = list.IsOld(i);
  if (old) load(list.RowOf(i));
  WaitForPrevious();
  int row = old ? -1 : list.RowOf(i), next_row = list.RowOf(i + stride);
  if (!old) {
    load(row);
    TouchF32(source);
  }
  const uint8_t* page;
  row = next_row;
  next_row = list.RowOf(i + 2 * stride);
  page = page_of(i + stride, row);
  const uint32_t at = tiles + static_cast<uint32_t>(warp * 1024 + r * 128 + ((2 * part) ^ r) * 16);
  const uint32_t at_tail = tiles + static_cast<uint32_t>(7 * kBlockBytes + warp * 1024 + r * 128 + (part ^ r) * 16);
  int n = 0;  // tiles of this block so far
  for (int tile = first; tile < num_tiles; tile += step, ++n) {
    const uint32_t buffer = static_cast<uint32_t>(n) & 1;
    const uint32_t to = at + buffer * kTileBytes, tail = at_tail + buffer * kTileBytes;
    i += stride;
    const uint2 scales = raw.scales;
    const bool usual = !raw.Unusual();
    const Source next = Locate(a, list, i, row, page, part);
    raw.LoadScales(next);
    row = next_row;
    page = page_of(i + stride, row);
    next_row = list.RowOf(i + 2 * stride);
    if (n >= 2) WaitFor(empty + 8 * buffer, (n / 2 + 1) & 1);
    if (source.kind == kFp8Row && usual) {
      StoreFp8Row(raw, scales, next, to, tail);
    } else {
#pragma unroll
      for (int b = 0; b < 7; ++b) raw.LoadCodes(next, b);
      raw.LoadTail(next);
      CopyRow<2>(source, scales, to, tail);
    }
    TouchF32(next);
    if (part == 0) valid[buffer * kTile + warp * 8 + r] = source.kind != kNone;
    FenceAsyncShared();
    __syncwarp();
    if (part == 0) BarrierArrive(full + 8 * buffer);
    source = next;
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace dsv4::attend
