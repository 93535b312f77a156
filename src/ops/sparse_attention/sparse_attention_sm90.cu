// SparseAttention on Hopper's tensor cores.
//
// A block takes one token and kHeads of its heads (all heads share the rows, and a row is key and value). Rows come in
// tiles of 64, in the list's order: eight warps gather a tile by index, decode it to BF16 and lay it in shared memory;
// two warpgroups multiply:
//   S^T [64 rows, heads] = K Q^T        the warpgroups share the heads
//   P = exp2(S - the tile's own maximum), in BF16
//   O^T [512, heads]     = V^T P^T      the warpgroups share the channels; V is the same memory as K
// Every tile is summed from zero and then merged into the total with float32 factors, tile after tile. A tile's sums
// depend on nothing but the token's own rows and q, and merging is the same arithmetic whether one block walks through
// all tiles or each tile has a block of its own and AttentionMergeKernel follows. So a token's bits depend neither on how
// many tokens the step has nor on how many heads share a block. With more than kMaxExactTokens tokens (prompts) a chain
// of sums over all tiles is faster (MultiplyChain); its bits differ, unless ctx.batch_invariant forbids it.
//
// Gathering by index beside the multiplication: FlashMLA (github.com/deepseek-ai/FlashMLA, docs/20250929-hopper-fp8-sparse-deep-dive.md).
// wgmma operands: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
#include "ops/sparse_attention/sparse_attention_sm90.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/launch.cuh"
#include "ops/sparse_attention/rows.cuh"
#include "ops/wgmma.cuh"

namespace dsv4 {

namespace {

constexpr int kDim = 512;
constexpr int kTile = 64;                   // rows
constexpr int kBlockBytes = kTile * 128;    // 64 channels of a tile
constexpr int kTileBytes = 8 * kBlockBytes;
constexpr int kFp8Channels = 448;
constexpr int kPairs = 32, kRotated = kDim - 2 * kPairs;  // RoPE
constexpr int kFp8RowBytes = 576;           // 448 + 2 * 64
constexpr int kFp8ScaleBytes = 8;
constexpr int kConsumers = 256, kProducers = 256, kThreads = kConsumers + kProducers;
constexpr int kMaxSplitTokens = 16;   // up to here a tile has a block of its own
constexpr int kMaxExactTokens = 64;   // up to here, at least, a token's bits do not depend on T

struct Params {
  const float* q;
  const float* kv;
  const __nv_bfloat16* kv16;  // kv in BF16, or null
  const float* sink;
  float* out;
  const float2* cos_sin;      // [T, kPairs], or null: out is not rotated back
  float* partial;             // [T, slots, N, 512]: sums of single tiles
  float2* partial_ml;         // [T, slots, N]: their maximum (times log2 e) and sum
  int slots;                  // 0: one block walks through all tiles
  int num_heads;
  int ratio_shift, page_shift;  // log2 of the compression ratio and of the rows in a page
  float scale_log2;           // Dh^-1/2 log2 e
  gpu::AttentionView v;
};

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Factors of what was summed before and of a tile, for their common maximum.
__device__ __forceinline__ float2 MergeFactors(float& largest, float of_tile) {
  const float now = fmaxf(largest, of_tile);
  const float2 f = make_float2(Exp2(largest - now), Exp2(of_tile - now));
  largest = now;
  return f;
}
__device__ __forceinline__ float Merge(float total, float of_tile, float2 f) {
  return __fmaf_rn(of_tile, f.y, __fmul_rn(total, f.x));
}
// Factor that turns a head's sum into its output: the sink joins the denominator once, as a logit of its own.
__device__ __forceinline__ float OutputFactor(float largest, float sum, float sink) {
  const float s = sink * 1.44269504088896341f, m = fmaxf(largest, s), w = Exp2(largest - m);
  return __fdiv_rn(w, __fmaf_rn(sum, w, Exp2(s - m)));
}

// The rows of one token, in few registers: positions and row numbers fit in 32 bits. A row is found in three steps, so
// that a tile's loads of one step are under way while the tile before it takes the next.
struct RowList {
  const uint8_t* ring;
  uint8_t* const* pages;
  const int32_t* picks;
  const uint8_t* own;  // the row of window entry 0, were it in this step
  int first, num_window, num_own, size;

  __device__ __forceinline__ RowList(const Params& a, int64_t t) {
    const SequenceView* seq = a.v.sequences + a.v.sequence_of[t];
    const int position = static_cast<int>(a.v.positions[t]), window = static_cast<int>(a.v.window);
    ring = seq->fixed + a.v.layer.window_offset;
    pages = seq->pages;
    picks = a.v.topk_idxs != nullptr ? a.v.topk_idxs + t * a.v.num_picks : nullptr;
    first = max(0, position - window + 1);
    num_window = position - first + 1;
    const int start = static_cast<int>(seq->start);
    num_own = min(num_window, position + 1 - start);
    size = num_window;
    if (a.ratio_shift >= 0) {
      const int visible = (position + 1) >> a.ratio_shift;
      size += picks != nullptr ? min(visible, a.v.num_picks) : visible;
    }
    const int64_t row = seq->begin + first - start;
    own = a.kv16 != nullptr ? reinterpret_cast<const uint8_t*>(a.kv16 + row * kDim) : reinterpret_cast<const uint8_t*>(a.kv + row * kDim);
  }
  __device__ __forceinline__ int num_tiles() const { return (size + kTile - 1) / kTile; }
  // Step 1: the compressed row that list entry i names; -1: none.
  __device__ __forceinline__ int RowOf(int i) const {
    if (i >= size) return -1;
    if (i < num_window) return 0;
    return picks != nullptr ? picks[i - num_window] : i - num_window;
  }
  // Step 2: the memory that it lies in.
  __device__ __forceinline__ const uint8_t* PageOf(const Params& a, int i, int row) const {
    if (row < 0 || i < num_window) return ring;
    return pages[row >> a.page_shift];
  }
};

// Offsets in shared memory.
template <int kHeads>
struct Shared {
  static constexpr int kTiles = 0;
  static constexpr int kQ = 2 * kTileBytes;
  static constexpr int kP = kQ + kHeads * 2 * kDim;
  static constexpr int kFactors = kP + 2 * kHeads * 128;    // float2 [2][kHeads]
  static constexpr int kMax = kFactors + 2 * kHeads * 8;    // float [2 warpgroups][4 warps][kHeads / 2]
  static constexpr int kSum = kMax + 4 * kHeads * 4;
  static constexpr int kValid = kSum + 4 * kHeads * 4;      // uint8 [2][kTile]
  static constexpr int kFlags = kValid + 2 * kTile;         // uint8 [2][2 warpgroups]
  static constexpr int kOut = kFlags + 8;                   // float [kHeads]: factors of the output
  static constexpr int kBarriers = kOut + 4 * kHeads;       // full[2], empty[2], q_full, q_empty
  static constexpr int kBytes = kBarriers + 48 + 1024;      // the base is aligned to 1,024 by hand
};

// One channel of a pair, rotated by minus its angle: `x` itself, `other` its partner; `odd`: x is the second. As Rope does.
__device__ __forceinline__ float RotatedBack(float x, float other, float2 cos_sin, bool odd) {
  const float c = cos_sin.x, s = -cos_sin.y;
  return odd ? __fadd_rn(__fmul_rn(other, s), __fmul_rn(x, c)) : __fsub_rn(__fmul_rn(x, c), __fmul_rn(other, s));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d[64, kN] = A B + (add ? d : 0), both operands in shared memory; B is K-major, A is M-major when kMMajor.
template <int kN>
struct Product;
#define DSV4_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4_PRODUCT(N, LIST, A, B, ADD, MAJOR, ...)                                                                   \
  template <>                                                                                                         \
  struct Product<N> {                                                                                                 \
    template <int kMMajor>                                                                                            \
    static __device__ __forceinline__ void Run(float* d, uint64_t a, uint64_t b, uint32_t add) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N             \
                   "k16.f32.bf16.bf16 {" LIST "}, %" #A ", %" #B ", p, 1, 1, %" #MAJOR ", 0;\n}"                      \
                   : __VA_ARGS__                                                                                      \
                   : "l"(a), "l"(b), "r"(add), "n"(kMMajor));                                                         \
    }                                                                                                                 \
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

// sm90::BarrierWait without its trap: with a trap in the consumers' loop ptxas (13.0) gives their branch the registers of
// the launch bound instead of setmaxnreg's. A barrier that never completes ends in wrong numbers, not in a hung GPU.
__device__ __forceinline__ void WaitFor(uint32_t bar, uint32_t parity) {
  for (uint32_t tries = 0; tries < (1u << 24) && !sm90::BarrierTryWait(bar, parity); ++tries) {
  }
}

// ---- gathering ----

enum Kind : int { kNone, kFp8Row, kBf16Row, kF32Row };

struct Source {
  const uint8_t* data;
  const uint8_t* scale;
  int kind;
};

// Step 3.
__device__ __forceinline__ Source Locate(const Params& a, const RowList& list, int i, int row, const uint8_t* page) {
  if (row < 0) return {nullptr, nullptr, kNone};
  if (i < list.num_window && i >= list.num_window - list.num_own) {
    const bool bf16 = a.kv16 != nullptr;
    return {list.own + static_cast<int64_t>(i) * (bf16 ? 2 * kDim : 4 * kDim), nullptr, bf16 ? kBf16Row : kF32Row};
  }
  const bool window = i < list.num_window;
  const uint32_t capacity = window ? static_cast<uint32_t>(a.v.window) : 1u << a.page_shift;
  const uint32_t slot = static_cast<uint32_t>(window ? list.first + i : row) & (capacity - 1);
  const uint8_t* base = page + (window ? 0 : a.v.layer.main.rows_offset);
  if (a.v.layer.window_row.kind == RowFormat::Kind::kBf16) return {base + slot * 2 * kDim, nullptr, kBf16Row};
  return {base + slot * kFp8RowBytes, base + capacity * kFp8RowBytes + slot * kFp8ScaleBytes, kFp8Row};
}

__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void StoreShared16(uint32_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t MultiplyBf16x2(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

// 16 E4M3 codes times 2^(scale - 127) as BF16 pairs, exactly. As exponent and mantissa of a BF16 a code is 2^-120 times
// its value, subnormals included.
__device__ __forceinline__ void DecodeFp8x16(const uint4& codes, uint32_t scale, uint32_t (&out)[8]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t nans = 0;  // adding 1 changes the sign bit of a NaN's byte only
#pragma unroll
  for (int i = 0; i < 4; ++i) nans |= (words[i] + 0x01010101u) ^ words[i];
  if (((nans & 0x80808080u) != 0) | (scale > 134)) [[unlikely]] {  // a NaN, or a scale that 2^120 would carry beyond BF16
    const float s = gpu::E8m0ToF32(static_cast<uint8_t>(scale));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t pair = words[i / 2] >> (16 * (i % 2));
      out[i] = PackBf16(gpu::E4m3ToF32(static_cast<uint8_t>(pair & 0xFF)) * s, gpu::E4m3ToF32(static_cast<uint8_t>(pair >> 8 & 0xFF)) * s);
    }
    return;
  }
  const uint32_t factor = (scale + 120) * 0x00800080u;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t spread = __byte_perm(words[i / 2], 0, i % 2 ? 0x3424 : 0x1404);
    out[i] = MultiplyBf16x2((spread & 0x80008000u) | (spread >> 4 & 0x07F007F0u), factor);
  }
}

// A quarter of an FP8 row: 7 times 16 codes, one of every scale's block, and two pieces of its BF16 tail.
struct RawRow {
  uint4 codes[7], tail[2];
  uint2 scales;

  __device__ __forceinline__ void LoadCodes(const Source& s, int part, int b) {
    if (s.kind == kFp8Row) codes[b] = __ldcg(reinterpret_cast<const uint4*>(s.data + 16 * part + 64 * b));
  }
  __device__ __forceinline__ void LoadTail(const Source& s, int part) {
    if (s.kind != kFp8Row) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) tail[i] = __ldcg(reinterpret_cast<const uint4*>(s.data + kFp8Channels + 16 * part + 64 * i));
  }
  __device__ __forceinline__ void LoadScales(const Source& s) {
    if (s.kind == kFp8Row) scales = __ldcg(reinterpret_cast<const uint2*>(s.scale));
  }
  __device__ __forceinline__ void Load(const Source& s, int part) {
    LoadScales(s);
#pragma unroll
    for (int b = 0; b < 7; ++b) LoadCodes(s, part, b);
    LoadTail(s, part);
  }
};

// Warp `warp` of eight fills rows 8 warp .. 8 warp + 7 of every tile; lane 4 r + p has a quarter of row r: of every 64
// channels 16 p .. 16 p + 15. The 16-byte chunk c of row r of a block lies at chunk c ^ r, so eight lanes hit all banks.
// Registers that a tile leaves take the next tile's bytes at once. `n` counts a block's tiles; `queries` loads the
// queries while the first rows are under way.
template <typename LoadQ>
__device__ __forceinline__ int Gather(const Params& a, const RowList& list, int first, int step, int num_tiles, int n, uint32_t tiles,
                                      uint8_t* valid, uint32_t full, uint32_t empty, int warp, int lane, const LoadQ& queries) {
  const int r = lane / 4, part = lane % 4, stride = step * kTile;
  int i = first * kTile + warp * 8 + r;
  int row = list.RowOf(i), next_row = list.RowOf(i + stride);
  const uint8_t* page = list.PageOf(a, i, row);
  Source source = Locate(a, list, i, row, page);
  RawRow raw;
  raw.Load(source, part);
  row = next_row;
  next_row = list.RowOf(i + 2 * stride);
  page = list.PageOf(a, i + stride, row);
  queries();
  const uint32_t at = tiles + static_cast<uint32_t>(warp * 1024 + r * 128);
  const uint32_t chunk0 = static_cast<uint32_t>((2 * part) ^ r) * 16, chunk1 = static_cast<uint32_t>((2 * part + 1) ^ r) * 16;
  for (int tile = first; tile < num_tiles; tile += step, ++n) {
    const uint32_t buffer = static_cast<uint32_t>(n) & 1;
    const uint32_t to0 = at + buffer * kTileBytes + chunk0, to1 = at + buffer * kTileBytes + chunk1;
    i += stride;
    const Source next = Locate(a, list, i, row, page);
    row = next_row;
    page = list.PageOf(a, i + stride, row);
    next_row = list.RowOf(i + 2 * stride);
    if (n >= 2) WaitFor(empty + 8 * buffer, (n / 2 + 1) & 1);
    if (source.kind == kFp8Row) {
      const uint2 scales = raw.scales;
      raw.LoadScales(next);
#pragma unroll
      for (int b = 0; b < 7; ++b) {
        uint32_t x[8];
        DecodeFp8x16(raw.codes[b], __byte_perm(scales.x, scales.y, b) & 0xFF, x);
        raw.LoadCodes(next, part, b);
        StoreShared16(to0 + b * kBlockBytes, x[0], x[1], x[2], x[3]);
        StoreShared16(to1 + b * kBlockBytes, x[4], x[5], x[6], x[7]);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t to = at + buffer * kTileBytes + 7 * kBlockBytes + static_cast<uint32_t>((part + 4 * j) ^ r) * 16;
        StoreShared16(to, raw.tail[j].x, raw.tail[j].y, raw.tail[j].z, raw.tail[j].w);
      }
      raw.LoadTail(next, part);
    } else {
      raw.Load(next, part);
      if (source.kind == kBf16Row) {
#pragma unroll
        for (int b = 0; b < 8; ++b) {
          CopyAsync16(to0 + b * kBlockBytes, source.data + 128 * b + 32 * part);
          CopyAsync16(to1 + b * kBlockBytes, source.data + 128 * b + 32 * part + 16);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
      } else {
#pragma unroll 1
        for (int b = 0; b < 8; ++b) {
          float4 x[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            x[j] = source.kind == kF32Row ? *reinterpret_cast<const float4*>(source.data + 256 * b + 64 * part + 16 * j) : make_float4(0, 0, 0, 0);
          }
          StoreShared16(to0 + b * kBlockBytes, PackBf16(x[0].x, x[0].y), PackBf16(x[0].z, x[0].w), PackBf16(x[1].x, x[1].y), PackBf16(x[1].z, x[1].w));
          StoreShared16(to1 + b * kBlockBytes, PackBf16(x[2].x, x[2].y), PackBf16(x[2].z, x[2].w), PackBf16(x[3].x, x[3].y), PackBf16(x[3].z, x[3].w));
        }
      }
    }
    if (part == 0) valid[buffer * kTile + warp * 8 + r] = source.kind != kNone;
    sm90::FenceAsyncShared();
    __syncwarp();
    if (lane == 0) sm90::BarrierArrive(full + 8 * buffer);
    source = next;
  }
  return n;
}

// ---- the kernel ----

// Queries, by 256 threads, in BF16, as [heads, 64 channels] blocks with the 128-byte swizzle.
template <int kHeads, int kUnroll>
__device__ __forceinline__ void LoadQueries(const Params& a, int64_t t, int head0, uint32_t base, int tid) {
  const float* q = a.q + (t * a.num_heads + head0) * kDim;
#pragma unroll kUnroll
  for (int j = 0; j < kHeads * kDim / 8 / kConsumers; ++j) {
    const int i = tid + j * kConsumers, head = i / (kDim / 8), c = i % (kDim / 8);
    const float4 x = *reinterpret_cast<const float4*>(q + head * kDim + c * 8), y = *reinterpret_cast<const float4*>(q + head * kDim + c * 8 + 4);
    StoreShared16(base + static_cast<uint32_t>(Shared<kHeads>::kQ + c / 8 * (kHeads * 128) + head * 128 + ((c % 8) ^ (head % 8)) * 16),
                  PackBf16(x.x, x.y), PackBf16(x.z, x.w), PackBf16(y.x, y.y), PackBf16(y.z, y.w));
  }
  sm90::FenceAsyncShared();
}

// S^T of one tile for the heads of one warpgroup; not waited for.
template <int kHeads>
__device__ __forceinline__ void IssueScores(float* s, uint32_t rows, uint64_t queries) {
  asm volatile("" : "+l"(queries));  // not 32 descriptors kept across tiles
  const uint64_t k_rows = sm90::SwizzledRows(rows);
  sm90::WgmmaFence();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    Product<kHeads / 2>::template Run<0>(s, k_rows + k / 4 * (kBlockBytes / 16) + k % 4 * 2, queries + k / 4 * (kHeads * 128 / 16) + k % 4 * 2, k > 0);
  }
  sm90::WgmmaCommit();
}

// P [heads, 64 rows] in BF16, K-major: row r of head h lies in chunk r / 8 ^ h % 8.
__device__ __forceinline__ void StoreP(uint8_t* p_rows, int head, int warp, int lane, float p0, float p1) {
  uint8_t* at = p_rows + head * 128 + lane / 4 * 2;
  *reinterpret_cast<__nv_bfloat16*>(at + ((2 * warp) ^ (head % 8)) * 16) = __float2bfloat16_rn(p0);
  *reinterpret_cast<__nv_bfloat16*>(at + ((2 * warp + 1) ^ (head % 8)) * 16) = __float2bfloat16_rn(p1);
}

// O^T [512, heads] times a factor per head, to memory. total[block][4 b + 2 r + i]: channel 16 warp + lane / 4 + 8 r of
// 64-channel block 4 wg + block, head 8 b + 2 quad + i.
template <int kHeads>
__device__ __forceinline__ void StoreOutput(const Params& a, int64_t t, int head0, const float (&total)[4][kHeads / 2], const float* factor,
                                            int wg, int warp, int lane) {
  float* out = a.out + (t * a.num_heads + head0) * kDim + wg * 256 + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kHeads / 2; ++i) {
    const int head = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    const float f = factor[head];
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      float y = total[block][i] * f;
      if (block == 3 && wg == 1 && a.cos_sin != nullptr) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, y, 4);
        y = RotatedBack(y, other, a.cos_sin[t * kPairs + warp * 8 + lane / 8 + i / 2 % 2 * 4], lane / 4 % 2 == 1);
      }
      out[head * kDim + block * 64 + i / 2 % 2 * 8] = y;
    }
  }
}

// Everything a warpgroup does; `wg` is 0 or 1, `tid` counts within both.
template <int kHeads>
__device__ __forceinline__ void Multiply(const Params& a, int64_t t, int head0, bool split, int first, int step, int num_tiles,
                                         uint8_t* smem, uint32_t base, int tid) {
  using S = Shared<kHeads>;
  constexpr int kOwn = kHeads / 2;  // heads whose scores this warpgroup computes
  constexpr bool kSplits = kHeads == 16;
  // From lane 0, so that the compiler knows it for uniform; operand descriptors are.
  const int wg = __shfl_sync(0xFFFFFFFFu, tid / 128, 0), lane = tid % 32, warp = tid / 32 % 4, quad = lane % 4;
  const uint32_t full = base + S::kBarriers, empty = full + 16;

  LoadQueries<kHeads, 8>(a, t, head0, base, tid);
  sm90::NamedBarrier(3, kConsumers);
  const uint64_t q_rows = sm90::SwizzledRows(base + S::kQ + static_cast<uint32_t>(wg) * kOwn * 128);
  float total[4][kHeads / 2];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) total[b][i] = 0;
  }
  // Threads 0 .. kOwn - 1 of a warpgroup keep the running maximum and sum of one head each.
  const int mine = tid % 128;
  float largest = -INFINITY, sum = 0;

  float s[kOwn / 2];
  WaitFor(full, 0);
  IssueScores<kHeads>(s, base + S::kTiles, q_rows);
  sm90::WgmmaWait<0>();
  int n = 0;
  for (int tile = first; tile < num_tiles; tile += step, ++n) {
    const int buffer = n & 1;
    const uint32_t rows = base + S::kTiles + static_cast<uint32_t>(buffer) * kTileBytes;
    const bool valid0 = smem[S::kValid + buffer * kTile + warp * 16 + lane / 4], valid1 = smem[S::kValid + buffer * kTile + warp * 16 + lane / 4 + 8];

    // s[4 b + 2 r + i]: row 16 warp + lane / 4 + 8 r, head 8 b + 2 quad + i. Maxima and sums over rows: lanes, then warps.
    float* warp_max = reinterpret_cast<float*>(smem + S::kMax) + wg * 4 * kOwn;
    float* warp_sum = reinterpret_cast<float*>(smem + S::kSum) + wg * 4 * kOwn;
#pragma unroll
    for (int b = 0; b < kOwn / 8; ++b) {
      float m[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& top = s[4 * b + i];
        float& bottom = s[4 * b + 2 + i];
        top = valid0 ? top * a.scale_log2 : -INFINITY;
        bottom = valid1 ? bottom * a.scale_log2 : -INFINITY;
        m[i] = fmaxf(top, bottom);
#pragma unroll
        for (int o = 4; o < 32; o *= 2) m[i] = fmaxf(m[i], __shfl_xor_sync(0xFFFFFFFFu, m[i], o));
      }
      if (lane < 4) *reinterpret_cast<float2*>(warp_max + warp * kOwn + 8 * b + 2 * lane) = make_float2(m[0], m[1]);
    }
    sm90::NamedBarrier(1 + wg, 128);
    uint8_t* p_rows = smem + S::kP + buffer * (kHeads * 128) + wg * (kOwn * 128);
#pragma unroll
    for (int b = 0; b < kOwn / 8; ++b) {
      float2 m = *reinterpret_cast<const float2*>(warp_max + 8 * b + 2 * quad);
#pragma unroll
      for (int w = 1; w < 4; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(warp_max + w * kOwn + 8 * b + 2 * quad);
        m = make_float2(fmaxf(m.x, other.x), fmaxf(m.y, other.y));
      }
      float of_warp[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float of_tile = i == 0 ? m.x : m.y, reference = of_tile == -INFINITY ? 0.0f : of_tile;
        const float p0 = Exp2(s[4 * b + i] - reference), p1 = Exp2(s[4 * b + 2 + i] - reference);
        of_warp[i] = p0 + p1;
#pragma unroll
        for (int o = 4; o < 32; o *= 2) of_warp[i] += __shfl_xor_sync(0xFFFFFFFFu, of_warp[i], o);
        StoreP(p_rows, 8 * b + 2 * quad + i, warp, lane, p0, p1);
      }
      if (lane < 4) *reinterpret_cast<float2*>(warp_sum + warp * kOwn + 8 * b + 2 * lane) = make_float2(of_warp[0], of_warp[1]);
    }
    float2* factors = reinterpret_cast<float2*>(smem + S::kFactors) + buffer * kHeads;
    float of_tile = 0;
    float2 mine_factors;
    if (mine < kOwn) {
      of_tile = fmaxf(fmaxf(warp_max[mine], warp_max[kOwn + mine]), fmaxf(warp_max[2 * kOwn + mine], warp_max[3 * kOwn + mine]));
      mine_factors = MergeFactors(largest, of_tile);
      factors[wg * kOwn + mine] = mine_factors;
    }
    sm90::FenceAsyncShared();
    sm90::NamedBarrier(3, kConsumers);
    if (mine < kOwn) {
      const float sum_of_tile = (warp_sum[mine] + warp_sum[kOwn + mine]) + (warp_sum[2 * kOwn + mine] + warp_sum[3 * kOwn + mine]);
      sum = Merge(sum, sum_of_tile, mine_factors);
      if (kSplits && split) a.partial_ml[(t * a.slots + tile) * a.num_heads + head0 + wg * kOwn + mine] = make_float2(of_tile, sum_of_tile);
    }

    uint64_t p = sm90::SwizzledRows(base + S::kP + static_cast<uint32_t>(buffer) * (kHeads * 128));
    float o[4][kHeads / 2];
    sm90::WgmmaFence();
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const uint64_t v_rows = sm90::SwizzledRows(rows + static_cast<uint32_t>(wg * 4 + block) * kBlockBytes);
#pragma unroll
      for (int k = 0; k < kTile / 16; ++k) Product<kHeads>::template Run<1>(o[block], v_rows + k * (2048 / 16), p + k * 2, k > 0);
    }
    sm90::WgmmaCommit();
    if (tile + step < num_tiles) {  // the next scores run while these sums are merged
      WaitFor(full + 8 * (buffer ^ 1), (n + 1) / 2 & 1);
      IssueScores<kHeads>(s, base + S::kTiles + static_cast<uint32_t>(buffer ^ 1) * kTileBytes, q_rows);
      sm90::WgmmaWait<1>();
      if (lane == 0) sm90::BarrierArrive(empty + 8 * buffer);
    } else {
      sm90::WgmmaWait<0>();
    }
    // o[block][4 b + 2 r + i]: channel 16 warp + lane / 4 + 8 r of 64-channel block 4 wg + block, head 8 b + 2 quad + i.
    if (kSplits && split) {
      float* to = a.partial + ((t * a.slots + tile) * a.num_heads + head0) * kDim + wg * 256 + warp * 16 + lane / 4;
#pragma unroll
      for (int i = 0; i < kHeads / 2; ++i) {
#pragma unroll
        for (int block = 0; block < 4; ++block) to[(i / 4 * 8 + 2 * quad + i % 2) * kDim + block * 64 + i / 2 % 2 * 8] = o[block][i];
      }
    } else {
#pragma unroll
      for (int b = 0; b < kHeads / 8; ++b) {
        const float4 f = *reinterpret_cast<const float4*>(factors + 8 * b + 2 * quad);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 of_head = i % 2 == 0 ? make_float2(f.x, f.y) : make_float2(f.z, f.w);
#pragma unroll
          for (int block = 0; block < 4; ++block) total[block][4 * b + i] = Merge(total[block][4 * b + i], o[block][4 * b + i], of_head);
        }
      }
    }
    sm90::WgmmaWait<0>();
  }
  if (kSplits && split) return;

  float* factor = reinterpret_cast<float*>(smem + S::kFactors + (n & 1) * kHeads * 8);
  if (mine < kOwn) factor[wg * kOwn + mine] = OutputFactor(largest, sum, a.sink[head0 + wg * kOwn + mine]);
  sm90::NamedBarrier(3, kConsumers);
  StoreOutput<kHeads>(a, t, head0, total, factor, wg, warp, lane);
}

// The fast form for many tokens: all tiles of a block in one chain of sums. Weights are relative to the first tile's
// maximum; only when a score exceeds that by more than kHeadroom (in powers of two) are the sums rescaled. Bits differ
// from Multiply's in the last place, but depend on the token's rows alone all the same. A block takes many items (a
// token and 64 heads) one after the other: queries and rows of the next are gathered while the last is written.
// `count`: tiles of this block so far.
template <int kHeads>
__device__ __forceinline__ void MultiplyChain(const Params& a, int64_t t, int head0, int num_tiles, int item, int& count, uint8_t* smem, uint32_t base, int tid) {
  using S = Shared<kHeads>;
  constexpr int kOwn = kHeads / 2;
  constexpr float kHeadroom = 40;
  const int wg = __shfl_sync(0xFFFFFFFFu, tid / 128, 0), lane = tid % 32, warp = tid / 32 % 4, quad = lane % 4;
  const uint32_t full = base + S::kBarriers, empty = full + 16, q_full = full + 32, q_empty = full + 40;

  const uint64_t q_rows = sm90::SwizzledRows(base + S::kQ + static_cast<uint32_t>(wg) * kOwn * 128);
  float total[4][kHeads / 2], s[kOwn / 2];
  float sum[kOwn / 4], reference[kOwn / 4];  // of heads 8 b + 2 quad + i, at 2 b + i; sums over this thread's rows
#pragma unroll
  for (int i = 0; i < kOwn / 4; ++i) sum[i] = 0, reference[i] = -INFINITY;
  float* warp_max = reinterpret_cast<float*>(smem + S::kMax) + wg * 4 * kOwn;
  WaitFor(q_full, item & 1);
  WaitFor(full + 8 * (count & 1), count / 2 & 1);
  IssueScores<kHeads>(s, base + S::kTiles + static_cast<uint32_t>(count & 1) * kTileBytes, q_rows);
  sm90::WgmmaWait<0>();
  for (int n = 0; n < num_tiles; ++n, ++count) {
    const int buffer = count & 1;
    if (n + 1 == num_tiles && lane == 0) sm90::BarrierArrive(q_empty);
    const uint32_t rows = base + S::kTiles + static_cast<uint32_t>(buffer) * kTileBytes;
    const bool valid0 = smem[S::kValid + buffer * kTile + warp * 16 + lane / 4], valid1 = smem[S::kValid + buffer * kTile + warp * 16 + lane / 4 + 8];
    float2* factors = reinterpret_cast<float2*>(smem + S::kFactors) + buffer * kHeads;  // of a head: {rescale, -}
    bool over = n == 0;
#pragma unroll
    for (int i = 0; i < kOwn / 2; ++i) {
      s[i] = (i & 2 ? valid1 : valid0) ? s[i] * a.scale_log2 : -INFINITY;
      over |= s[i] > reference[i / 4 * 2 + i % 2] + kHeadroom;
    }
    const bool rescale = sm90::NamedBarrierOr(1 + wg, 128, over);
    if (rescale) {
#pragma unroll
      for (int i = 0; i < kOwn / 4; ++i) {
        float m = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + 2 + i % 2]);
#pragma unroll
        for (int o = 4; o < 32; o *= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, o));
        if (lane < 4) warp_max[warp * kOwn + i / 2 * 8 + 2 * quad + i % 2] = m;
      }
      sm90::NamedBarrier(1 + wg, 128);
#pragma unroll
      for (int i = 0; i < kOwn / 4; ++i) {
        const int head = i / 2 * 8 + 2 * quad + i % 2;
        const float m = fmaxf(fmaxf(warp_max[head], warp_max[kOwn + head]), fmaxf(warp_max[2 * kOwn + head], warp_max[3 * kOwn + head]));
        float now = fmaxf(reference[i], m);
        if (now == -INFINITY) now = 0;  // no score but NaNs
        const float factor = Exp2(reference[i] - now);
        reference[i] = now;
        sum[i] *= factor;
        if (tid % 128 < 4) factors[wg * kOwn + head].x = factor;
      }
    }
    if (tid % 128 == 0) smem[S::kFlags + buffer * 2 + wg] = rescale;
    uint8_t* p_rows = smem + S::kP + buffer * (kHeads * 128) + wg * (kOwn * 128);
#pragma unroll
    for (int i = 0; i < kOwn / 4; ++i) {
      const float p0 = Exp2(s[i / 2 * 4 + i % 2] - reference[i]), p1 = Exp2(s[i / 2 * 4 + 2 + i % 2] - reference[i]);
      sum[i] += p0 + p1;
      StoreP(p_rows, i / 2 * 8 + 2 * quad + i % 2, warp, lane, p0, p1);
    }
    sm90::FenceAsyncShared();
    sm90::NamedBarrier(3, kConsumers);
    const bool rescale0 = n > 0 && smem[S::kFlags + buffer * 2], rescale1 = n > 0 && smem[S::kFlags + buffer * 2 + 1];
    if (rescale0 | rescale1) {
#pragma unroll
      for (int i = 0; i < kHeads / 2; ++i) {
        const int head = i / 4 * 8 + 2 * quad + i % 2;
        const float factor = (head < kOwn ? rescale0 : rescale1) ? factors[head].x : 1.0f;
#pragma unroll
        for (int block = 0; block < 4; ++block) total[block][i] *= factor;
      }
    }
    uint64_t p = sm90::SwizzledRows(base + S::kP + static_cast<uint32_t>(buffer) * (kHeads * 128));
    sm90::WgmmaFence();
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const uint64_t v_rows = sm90::SwizzledRows(rows + static_cast<uint32_t>(wg * 4 + block) * kBlockBytes);
#pragma unroll
      for (int k = 0; k < kTile / 16; ++k) Product<kHeads>::template Run<1>(total[block], v_rows + k * (2048 / 16), p + k * 2, k > 0 || n > 0);
    }
    sm90::WgmmaCommit();
    if (n + 1 < num_tiles) {  // the next scores queue behind, so that the tensor cores do not wait for this thread
      WaitFor(full + 8 * (buffer ^ 1), (count + 1) / 2 & 1);
      IssueScores<kHeads>(s, base + S::kTiles + static_cast<uint32_t>(buffer ^ 1) * kTileBytes, q_rows);
      sm90::WgmmaWait<1>();
      if (lane == 0) sm90::BarrierArrive(empty + 8 * buffer);
      sm90::WgmmaWait<0>();
    } else {
      sm90::WgmmaWait<0>();
      if (lane == 0) sm90::BarrierArrive(empty + 8 * buffer);
    }
  }

  float* warp_sum = reinterpret_cast<float*>(smem + S::kSum) + wg * 4 * kOwn;
#pragma unroll
  for (int i = 0; i < kOwn / 4; ++i) {
    const int head = i / 2 * 8 + 2 * quad + i % 2;
#pragma unroll
    for (int o = 4; o < 32; o *= 2) sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], o);
    if (lane < 4) warp_sum[warp * kOwn + head] = sum[i];
    if (warp == 0 && lane < 4) warp_max[head] = reference[i];
  }
  sm90::NamedBarrier(1 + wg, 128);
  float* factor = reinterpret_cast<float*>(smem + S::kOut);
  const int mine = tid % 128;
  if (mine < kOwn) {
    const float all = (warp_sum[mine] + warp_sum[kOwn + mine]) + (warp_sum[2 * kOwn + mine] + warp_sum[3 * kOwn + mine]);
    factor[wg * kOwn + mine] = OutputFactor(warp_max[mine], all, a.sink[head0 + wg * kOwn + mine]);
  }
  sm90::NamedBarrier(3, kConsumers);
  StoreOutput<kHeads>(a, t, head0, total, factor, wg, warp, lane);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kHeads>
__device__ __forceinline__ uint8_t* PrepareShared(uint8_t* raw, uint32_t& base) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  base = (sm90::SharedAddress(raw) + 1023u) & ~1023u;
  const uint32_t full = base + Shared<kHeads>::kBarriers;
  if (threadIdx.x == 0) {
    for (int b = 0; b < 2; ++b) {
      sm90::BarrierInit(full + 8 * b, kProducers / 32);
      sm90::BarrierInit(full + 16 + 8 * b, kConsumers / 32);
    }
    sm90::BarrierInit(full + 32, kProducers / 32);
    sm90::BarrierInit(full + 40, kConsumers / 32);
    sm90::BarrierInitFence();
  }
  return raw + (base - sm90::SharedAddress(raw));
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
  WaitForPrevious();
  const int64_t t = blockIdx.x;
  const RowList list(a, t);
  const int num_tiles = list.num_tiles();
  const bool split = a.slots > 0 && num_tiles <= a.slots;
  const int first = blockIdx.z, step = split ? gridDim.z : 1;
  if (first >= (split ? num_tiles : 1)) return;
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    if constexpr (kHeads > 16) sm90::FewerRegisters<80>();
    Gather(a, list, first, step, num_tiles, 0, base + S::kTiles, smem + S::kValid, full, empty, threadIdx.x / 32 - kConsumers / 32,
           threadIdx.x % 32, [] {});
  } else {
    if constexpr (kHeads > 16) sm90::MoreRegisters<176>();
    Multiply<kHeads>(a, t, static_cast<int>(blockIdx.y) * kHeads, split, first, step, num_tiles, smem, base, threadIdx.x);
  }
#endif
}

__global__ void __launch_bounds__(kThreads, 1) AttendChainKernel(const __grid_constant__ Params a, int num_items) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kHeads = 64;
  extern __shared__ uint8_t raw[];
  using S = Shared<kHeads>;
  AllowNext();
  uint32_t base;
  uint8_t* smem = PrepareShared<kHeads>(raw, base);
  const uint32_t full = base + S::kBarriers, empty = full + 16, q_full = full + 32, q_empty = full + 40;
  __syncthreads();
  const int groups = a.num_heads / kHeads;
  int item = 0, count = 0;
  if (threadIdx.x >= kConsumers) {
    sm90::FewerRegisters<80>();
    WaitForPrevious();
    const int tid = threadIdx.x - kConsumers, lane = tid % 32;
    for (int w = blockIdx.x; w < num_items; w += gridDim.x, ++item) {
      const int64_t t = w / groups;
      const RowList list(a, t);
      count = Gather(a, list, 0, 1, list.num_tiles(), count, base + S::kTiles, smem + S::kValid, full, empty, tid / 32, lane, [&] {
        if (item > 0) WaitFor(q_empty, (item + 1) & 1);
        LoadQueries<kHeads, 2>(a, t, w % groups * kHeads, base, tid);
        __syncwarp();
        if (lane == 0) sm90::BarrierArrive(q_full);
      });
    }
  } else {
    sm90::MoreRegisters<176>();
    WaitForPrevious();
    for (int w = blockIdx.x; w < num_items; w += gridDim.x, ++item) {
      const int64_t t = w / groups;
      MultiplyChain<kHeads>(a, t, w % groups * kHeads, RowList(a, t).num_tiles(), item, count, smem, base, threadIdx.x);
    }
  }
#endif
}

// Merges the tiles of one head of one token. The first `ahead` tiles are requested before their number is known (what
// lies behind the last is not used).
__global__ void __launch_bounds__(kDim / 4) AttentionMergeKernel(const __grid_constant__ Params a, int ahead) {
  constexpr int kAhead = 10;
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.y, head = blockIdx.x;
  const float sink = a.sink[head];
  const int64_t first = t * a.slots * a.num_heads + head;
  float2 ml[kAhead];
  float4 o[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i >= ahead) continue;
    ml[i] = a.partial_ml[first + i * a.num_heads];
    o[i] = reinterpret_cast<const float4*>(a.partial + (first + i * a.num_heads) * kDim)[threadIdx.x];
  }
  const int num_tiles = RowList(a, t).num_tiles();
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
    y = make_float4(RotatedBack(y.x, y.y, make_float2(cs.x, cs.y), false), RotatedBack(y.y, y.x, make_float2(cs.x, cs.y), true),
                    RotatedBack(y.z, y.w, make_float2(cs.z, cs.w), false), RotatedBack(y.w, y.z, make_float2(cs.z, cs.w), true));
  }
  reinterpret_cast<float4*>(a.out + (t * a.num_heads + head) * kDim)[threadIdx.x] = y;
}

__global__ void __launch_bounds__(256) ToBf16Kernel(const float4* x, uint2* y, int64_t n) {
  AllowNext();
  WaitForPrevious();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= n) return;
  const float4 v = x[i];
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
  y[i] = make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
}

bool GpuIsSm90() {
  static const bool is = [] {
    int device = 0, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return major == 9 && minor == 0;
  }();
  return is;
}

int Log2(int64_t x) { return static_cast<int>(std::bit_width(static_cast<uint64_t>(x))) - 1; }  // -1 of 0

template <int kHeads>
void LaunchAttend(const ExecContext& ctx, const Params& p, int64_t t, int splits) {
  Launch(ctx, AttendKernel<kHeads>, dim3(static_cast<unsigned>(t), static_cast<unsigned>(p.num_heads / kHeads), static_cast<unsigned>(splits)),
         dim3(kThreads), Shared<kHeads>::kBytes, p);
}

}  // namespace

bool SparseAttentionSm90Fits(const SparseAttentionArgs& a) {
  const LayerLayout& l = *a.cache.layer;
  const bool format = l.window_row.kind == RowFormat::Kind::kBf16 ||
                      (l.window_row.kind == RowFormat::Kind::kFp8 && l.window_row.rope_dim == kDim - kFp8Channels);
  const bool powers = std::has_single_bit(static_cast<uint64_t>(a.cache.window)) &&
                      (l.main.ratio == 0 || (std::has_single_bit(static_cast<uint64_t>(l.main.ratio)) &&
                                             std::has_single_bit(static_cast<uint64_t>(l.main.rows_per_page))));
  return a.q.dim(2) == kDim && a.q.dim(1) % 16 == 0 && format && powers && (!a.cos_sin || a.cos_sin.dim(1) == kPairs) && GpuIsSm90();
}

void SparseAttentionSm90(const ExecContext& ctx, const SparseAttentionArgs& a) {
  const int64_t t = a.q.dim(0), heads = a.q.dim(1);
  Params p = {.q = a.q.f32(), .kv = a.kv.f32(), .sink = a.sink.f32(), .out = a.out.f32(), .cos_sin = a.cos_sin ? reinterpret_cast<const float2*>(a.cos_sin.f32()) : nullptr,
              .num_heads = static_cast<int>(heads), .ratio_shift = Log2(a.cache.layer->main.ratio), .page_shift = Log2(a.cache.layer->main.rows_per_page),
              .scale_log2 = static_cast<float>(1.44269504088896341 / std::sqrt(static_cast<double>(kDim))), .v = gpu::ViewOf(a)};
  if (t <= kMaxSplitTokens) {
    // A block a tile, up to what the scratch memory holds; longer lists (a million rows and more) are walked through.
    const int64_t slot_bytes = t * heads * (kDim * 4 + 8);
    p.slots = static_cast<int>(std::min<int64_t>(4096, ctx.scratch.bytes / slot_bytes));
    p.partial = reinterpret_cast<float*>(ctx.scratch.data);
    p.partial_ml = reinterpret_cast<float2*>(p.partial + t * p.slots * heads * kDim);
    const int64_t groups = t * heads / 16;
    // Lists as long as their bound: the window and the picks, or a few tiles of a layer that reads everything.
    const int64_t window = a.cache.window, longest = p.ratio_shift < 0 ? window : a.topk_idxs ? window + a.topk_idxs.dim(1) : window + 4 * kTile;
    const int tiles = static_cast<int>((longest + kTile - 1) / kTile);
    const int splits = static_cast<int>(std::clamp<int64_t>(NumSms() / groups, 1, p.ratio_shift >= 0 && !a.topk_idxs ? 32 : tiles));
    LaunchAttend<16>(ctx, p, t, splits);
    Launch(ctx, AttentionMergeKernel, dim3(static_cast<unsigned>(heads), static_cast<unsigned>(t)), dim3(kDim / 4), 0, p,
           std::min({tiles, 10, p.slots}));
    return;
  }
  if (t > kMaxExactTokens && t * kDim * 2 <= ctx.scratch.bytes) {
    p.kv16 = reinterpret_cast<const __nv_bfloat16*>(ctx.scratch.data);
    const int64_t n = t * kDim / 4;
    Launch(ctx, ToBf16Kernel, dim3(static_cast<unsigned>((n + 255) / 256)), dim3(256), 0, reinterpret_cast<const float4*>(a.kv.f32()),
           reinterpret_cast<uint2*>(ctx.scratch.data), n);
  }
  if (heads % 64 == 0 && t > kMaxExactTokens && !ctx.batch_invariant) {
    const int items = static_cast<int>(t * heads / 64);
    Launch(ctx, AttendChainKernel, dim3(static_cast<unsigned>(std::min(items, NumSms()))), dim3(kThreads), Shared<64>::kBytes, p, items);
  } else if (heads % 32 == 0) {
    LaunchAttend<32>(ctx, p, t, 1);
  } else {
    LaunchAttend<16>(ctx, p, t, 1);
  }
}

}  // namespace dsv4
