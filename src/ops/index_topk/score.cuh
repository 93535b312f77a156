// Scores of index keys for index_topk_cuda.cu: score[t, w] = sum_h weight[t, h] max(0, q[t, h] . key[w]).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/launch.cuh"
#include "kv/row_codec.cuh"

namespace dsv4::topk {

struct Keys {
  const SequenceView* sequences;
  const int32_t* sequence_of;
  const int64_t* positions;
  CompressorLayout layout;
};

// ---- plain float32: any format and shape ----

constexpr int kPlainThreads = 256;
constexpr int kPlainKeys = 64;   // keys of a block's step
constexpr int kPlainHeads = 16;  // heads in shared memory at a time

inline size_t PlainSharedBytes(int64_t dim) {
  return static_cast<size_t>((kPlainKeys + kPlainHeads) * (dim + 1) + 4 * kPlainKeys) * 4;
}

// Tokens that see at most k rows need no scores. grid (key splits, tokens).
__global__ void __launch_bounds__(kPlainThreads)
    PlainScoreKernel(const float* q, const float* weights, Keys keys, float* scores, int64_t stride, int num_heads,
                     int dim, int64_t k) {
  extern __shared__ float shared[];
  const int pitch = dim + 1;
  float* key = shared;                        // [kPlainKeys, pitch]
  float* head = shared + kPlainKeys * pitch;  // [kPlainHeads, pitch]
  float* part = head + kPlainHeads * pitch;   // [4, kPlainKeys]
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.y, visible = (keys.positions[t] + 1) / keys.layout.ratio;
  if (visible <= k) return;
  const SequenceView& seq = keys.sequences[keys.sequence_of[t]];
  const int slot = threadIdx.x % kPlainKeys, group = threadIdx.x / kPlainKeys;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kPlainKeys; first < visible;
       first += static_cast<int64_t>(gridDim.x) * kPlainKeys) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kPlainKeys), visible - first));
    for (int i = threadIdx.x; i < count * dim; i += kPlainThreads) {
      const gpu::RowPointer row = gpu::EmittedRowAt(keys.layout, seq, first + i / dim);
      key[i / dim * pitch + i % dim] = gpu::DecodeChannel(keys.layout.row, row.data, row.scale, i % dim);
    }
    float sum = 0;
    for (int h0 = 0; h0 < num_heads; h0 += kPlainHeads) {
      const int heads = min(kPlainHeads, num_heads - h0);
      __syncthreads();
      for (int i = threadIdx.x; i < heads * dim; i += kPlainThreads) {
        head[i / dim * pitch + i % dim] = q[(t * num_heads + h0) * dim + i];
      }
      __syncthreads();
      if (slot < count) {
        for (int h = group; h < heads; h += 4) {
          float dot = 0;
          for (int i = 0; i < dim; ++i) dot = fmaf(head[h * pitch + i], key[slot * pitch + i], dot);
          // not fmaxf, which would drop a NaN
          sum = fmaf(weights[t * num_heads + h0 + h], dot < 0 ? 0.0f : dot, sum);
        }
      }
    }
    part[group * kPlainKeys + slot] = sum;
    __syncthreads();
    if (group == 0 && slot < count) {
      scores[t * stride + first + slot] = (part[slot] + part[kPlainKeys + slot]) +
                                          (part[2 * kPlainKeys + slot] + part[3 * kPlainKeys + slot]);
    }
  }
}

// ---- tensor cores: FP4 or BF16 keys of 128 channels, up to 64 heads ----
//
// q is rounded to the keys' format or coarser (index_topk.h), so BF16 holds it exactly, and every product is exact.
// Keys are the 16-row operand of mma.m16n8k16, heads its 8 columns. Lane 4 g + c of a warp has channels 32 c .. 32 c +
// 31 of keys g and g + 8: one scale block. Each eight of these channels, 8 i .. 8 i + 7, are two k steps. FP4 uses them
// as the pairs (j, j + 4), which are 16 bits apart in a word; BF16 in their order.

constexpr int kDim = 128, kMaxHeads = 64, kColumnTiles = kMaxHeads / 8;
constexpr int kScoreThreads = 256, kScoreWarps = kScoreThreads / 32;
constexpr int kRowTiles = 2, kWarpKeys = kRowTiles * 16;  // a warp's keys of a step
constexpr int kTileKeys = kScoreWarps * kWarpKeys;        // 256 keys of a block's step
constexpr int kQueryWords = 4 * kColumnTiles * 32;        // 16-byte words of a token's queries in shared memory
constexpr int kTokensPerBlock = 8;

inline size_t ScoreSharedBytes(int tokens) { return static_cast<size_t>(tokens) * (kQueryWords * 16 + kMaxHeads * 4); }

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint32_t Multiply(uint32_t a, uint32_t b) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                         *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&product);
}

__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// max(x, 0); a NaN stays a NaN.
__device__ __forceinline__ float Relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// A lane's part of one key: its 32 channels.
template <bool kFp4>
struct RawKey {
  uint4 codes[kFp4 ? 1 : 4];
  uint32_t scale;
};

template <bool kFp4>
__device__ __forceinline__ void LoadKey(const uint8_t* data, const uint8_t* scale, int c, RawKey<kFp4>& raw) {
  if constexpr (kFp4) {
    raw.codes[0] = *reinterpret_cast<const uint4*>(data + 16 * c);
    raw.scale = scale[c];
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.codes[i] = *reinterpret_cast<const uint4*>(data + 64 * c + 16 * i);
  }
}

// Fragments of two keys (rows g and g + 8 of a tile): a[step][4]. FP4 values are scaled by 2^-64: a code in BF16's
// exponent field is 2^-126 times its value, and 2^126 scale would not fit. The order of the scores does not change.
template <bool kFp4>
__device__ __forceinline__ void Decode(const RawKey<kFp4>& low, const RawKey<kFp4>& high, uint32_t (&a)[8][4]) {
  if constexpr (kFp4) {
    const auto factor = [](uint32_t e8m0) { return (e8m0 == 255 ? 0x7FC0u : min(e8m0 + 62, 254u) << 7) * 0x00010001u; };
    const uint32_t scale[2] = {factor(low.scale), factor(high.scale)};
    const uint32_t words[2][4] = {{low.codes[0].x, low.codes[0].y, low.codes[0].z, low.codes[0].w},
                                  {high.codes[0].x, high.codes[0].y, high.codes[0].z, high.codes[0].w}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t w = words[r][i];
        a[2 * i][r] = Multiply(((w << 12) & 0x80008000u) | ((w << 6) & 0x01C001C0u), scale[r]);
        a[2 * i][2 + r] = Multiply(((w << 8) & 0x80008000u) | ((w << 2) & 0x01C001C0u), scale[r]);
        a[2 * i + 1][r] = Multiply(((w << 4) & 0x80008000u) | ((w >> 2) & 0x01C001C0u), scale[r]);
        a[2 * i + 1][2 + r] = Multiply((w & 0x80008000u) | ((w >> 6) & 0x01C001C0u), scale[r]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[2 * i][0] = low.codes[i].x, a[2 * i][1] = high.codes[i].x;
      a[2 * i][2] = low.codes[i].y, a[2 * i][3] = high.codes[i].y;
      a[2 * i + 1][0] = low.codes[i].z, a[2 * i + 1][1] = high.codes[i].z;
      a[2 * i + 1][2] = low.codes[i].w, a[2 * i + 1][3] = high.codes[i].w;
    }
  }
}

// Writes a token's queries [num_heads, kDim] and head weights to shared memory, by the block.
template <bool kFp4>
__device__ __forceinline__ void StageQueries(const float* q, const float* weights, int num_heads, uint4* queries,
                                             float* head_weights) {
#pragma unroll
  for (int j = 0; j < kMaxHeads * 16 / kScoreThreads; ++j) {  // eight channels of a head
    const int chunk = j * kScoreThreads + static_cast<int>(threadIdx.x), head = chunk / 16, i = chunk % 4,
              quarter = chunk / 4 % 4;
    uint4 word = make_uint4(0, 0, 0, 0);
    if (head < num_heads) {
      const float4 x = *reinterpret_cast<const float4*>(q + chunk * 8),
                   y = *reinterpret_cast<const float4*>(q + chunk * 8 + 4);
      word = kFp4 ? make_uint4(Pack(x.x, y.x), Pack(x.y, y.y), Pack(x.z, y.z), Pack(x.w, y.w))
                  : make_uint4(Pack(x.x, x.y), Pack(x.z, x.w), Pack(y.x, y.y), Pack(y.z, y.w));
    }
    queries[(i * kColumnTiles + head / 8) * 32 + head % 8 * 4 + quarter] = word;
  }
  for (int h = threadIdx.x; h < kMaxHeads; h += kScoreThreads) head_weights[h] = h < num_heads ? weights[h] : 0.0f;
}

// Multiplies a warp's keys with all heads of a token; `b`: the lane's part of the queries.
__device__ __forceinline__ void MultiplyKeys(const uint32_t (&a)[kRowTiles][8][4], const uint4* b,
                                             float (&acc)[kRowTiles][kColumnTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[m][n][e] = 0;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {  // no product waits for the previous one
      const uint4 word[2] = {b[(i * kColumnTiles + n) * 32], b[(i * kColumnTiles + n + 1) * 32]};
#pragma unroll
      for (int p = 0; p < 2; ++p) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) Mma(acc[m][n + p], a[m][2 * i], word[p].x, word[p].y);
      }
#pragma unroll
      for (int p = 0; p < 2; ++p) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) Mma(acc[m][n + p], a[m][2 * i + 1], word[p].z, word[p].w);
      }
    }
  }
}

// The weighted sum of the heads' products: sum[m][r] of key g + 8 r of row tile m, in all lanes of a group.
__device__ __forceinline__ void SumHeads(const float (&acc)[kRowTiles][kColumnTiles][4], const float* weights, int c,
                                         float (&sum)[kRowTiles][2]) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(weights + 8 * n + 2 * c);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[m][r] = fmaf(w.x, Relu(acc[m][n][2 * r]), sum[m][r]);
        sum[m][r] = fmaf(w.y, Relu(acc[m][n][2 * r + 1]), sum[m][r]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[m][r] += __shfl_xor_sync(0xFFFFFFFFu, sum[m][r], 1);
      sum[m][r] += __shfl_xor_sync(0xFFFFFFFFu, sum[m][r], 2);
    }
  }
}

// grid (key splits, token tiles of kTokens). The last tokens, which see the most rows, come first.
template <bool kFp4, int kTokens>
__global__ void __launch_bounds__(kScoreThreads, kFp4&& kTokens == 1 ? 2 : 1)
    ScoreKernel(const float* q, const float* weights, Keys keys, float* scores, int64_t stride, int num_heads,
                int64_t k, int64_t num_tokens) {
  extern __shared__ uint4 queries[];                                                // [kTokens, 4, kColumnTiles, 32]
  float* head_weights = reinterpret_cast<float*>(queries + kTokens * kQueryWords);  // [kTokens, kMaxHeads]
  __shared__ int visible[kTokens];                                                  // rows to score
  __shared__ int sequence[kTokens];
  AllowNext();
  // Before the wait: only data that describes the step, and rows of earlier steps (docs/dev/kernels/README.md).
  const int64_t t0 = static_cast<int64_t>(gridDim.y - 1 - blockIdx.y) * kTokens;
  const int count = static_cast<int>(min(static_cast<int64_t>(kTokens), num_tokens - t0));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int first_tile = static_cast<int>(blockIdx.x) * kTileKeys, tile_step = static_cast<int>(gridDim.x) * kTileKeys;
  if (threadIdx.x < kTokens) {
    int64_t rows = 0;
    if (static_cast<int>(threadIdx.x) < count) {
      rows = (keys.positions[t0 + threadIdx.x] + 1) / keys.layout.ratio;
      sequence[threadIdx.x] = keys.sequence_of[t0 + threadIdx.x];
    }
    visible[threadIdx.x] = rows > k ? static_cast<int>(rows) : 0;
  }
  __syncthreads();

  // Runs of tokens of one sequence. A warp's keys are kWarpKeys rows in one page (rows_per_page is a multiple).
  int begin = 0, end = 0, rows = 0;
  const uint8_t* const* pages = nullptr;
  const uint32_t per_page = static_cast<uint32_t>(keys.layout.rows_per_page);
  const auto next_run = [&] {
    begin = end;
    if (begin >= count) return false;
    rows = visible[end++];
    while (end < count && sequence[end] == sequence[begin]) rows = max(rows, visible[end++]);
    pages = keys.sequences[sequence[begin]].pages;
    return true;
  };
  RawKey<kFp4> raw[kRowTiles][2] = {};
  const auto load = [&](int tile) {
    const uint32_t own = static_cast<uint32_t>(tile + warp * kWarpKeys);
    if (static_cast<int>(own) >= rows) return;
    const uint32_t page = own / per_page, first = own - page * per_page;
    const uint32_t last = first + static_cast<uint32_t>(rows) - 1 - own;  // rows after it may be unwritten
    const uint8_t* data = pages[page] + keys.layout.rows_offset;
    const uint8_t* scale = data + per_page * (kFp4 ? kDim / 2 : 2 * kDim);
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const uint32_t row = min(first + g + 8 * i, last);
      LoadKey<kFp4>(data + row * (kFp4 ? kDim / 2 : 2 * kDim), scale + row * (kDim / 32), c, raw[i / 2][i % 2]);
    }
  };
  bool more = next_run();
  // The first keys are in flight while the queries are prepared. In a sequence with one token only the newest row can
  // be of this step.
  const bool any = more && rows > first_tile;
  bool early = false;
  if (kTokens == 1 && any) {
    const SequenceView& seq = keys.sequences[sequence[0]];
    early = seq.end - seq.begin == 1 && first_tile + (warp + 1) * kWarpKeys < rows;
  }
  if (early) load(first_tile);
  WaitForPrevious();
  if (any && !early) load(first_tile);
  for (int token = 0; token < count; ++token) {
    if (visible[token] <= first_tile) continue;
    StageQueries<kFp4>(q + (t0 + token) * num_heads * kDim, weights + (t0 + token) * num_heads, num_heads,
                       queries + token * kQueryWords, head_weights + token * kMaxHeads);
  }
  __syncthreads();

  for (bool loaded = true; more; more = next_run(), loaded = false) {
    if (rows > first_tile) {
      if (!loaded) load(first_tile);
      for (int tile = first_tile; tile < rows; tile += tile_step) {
        if (tile + warp * kWarpKeys >= rows) break;
        uint32_t a[kRowTiles][8][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) Decode<kFp4>(raw[m][0], raw[m][1], a[m]);
        if (tile + tile_step < rows) load(tile + tile_step);
        const int own = tile + warp * kWarpKeys;
        for (int token = begin; token < end; ++token) {
          if (visible[token] <= own) continue;
          float acc[kRowTiles][kColumnTiles][4];
          MultiplyKeys(a, queries + token * kQueryWords + lane, acc);
          float sum[kRowTiles][2] = {};
          SumHeads(acc, head_weights + token * kMaxHeads, c, sum);
          // Lane c of a group writes the score of key g of half c.
          const float score = c == 0 ? sum[0][0] : c == 1 ? sum[0][1] : c == 2 ? sum[1][0] : sum[1][1];
          const int row = own + c * 8 + g;
          if (row < visible[token]) scores[(t0 + token) * stride + row] = score;
        }
      }
    }
  }
}

// The weighted sum of the heads' products: sum[r] of key g + 8 r, in all lanes of a group.
__device__ __forceinline__ void SumHeads(const float (&acc)[kColumnTiles][4], const float* weights, int c,
                                         float (&sum)[2]) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(weights + 8 * n + 2 * c);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = fmaf(w.x, Relu(acc[n][2 * r]), sum[r]);
      sum[r] = fmaf(w.y, Relu(acc[n][2 * r + 1]), sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xFFFFFFFFu, sum[r], 2);
  }
}

// A thread's part of a token's queries: first requested, then stored in shared memory.
struct OwnQueries {
  float4 x[4], y[4];

  __device__ __forceinline__ void Ask(const float* q, int num_heads) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // eight channels of a head
      const int chunk = j * kScoreThreads + static_cast<int>(threadIdx.x), head = chunk / 16;
      x[j] = y[j] = make_float4(0, 0, 0, 0);
      if (head < num_heads) {
        const float4* from = reinterpret_cast<const float4*>(q + chunk * 8);
        x[j] = from[0], y[j] = from[1];
      }
    }
  }
  __device__ __forceinline__ void Store(uint4* queries) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int chunk = j * kScoreThreads + static_cast<int>(threadIdx.x), head = chunk / 16, i = chunk % 4,
                quarter = chunk / 4 % 4;
      queries[(i * kColumnTiles + head / 8) * 32 + head % 8 * 4 + quarter] = make_uint4(
          Pack(x[j].x, y[j].x), Pack(x[j].y, y[j].y), Pack(x[j].z, y[j].z), Pack(x[j].w, y[j].w));
    }
  }
};

// One token and FP4: a warp has 16 keys per step and all heads. Data of earlier steps is requested before the wait and
// decoded after it, when the queries are in flight, because blocks that begin late must not lose time. Two blocks fit
// on a multiprocessor, so that no block begins late because the previous kernel still occupies multiprocessors.
__global__ void __launch_bounds__(kScoreThreads, 2)
    ScoreOneKernel(const float* q, const float* weights, Keys keys, float* scores, int num_heads, int64_t k,
                   bool one_sequence) {
  extern __shared__ uint4 queries[];                                      // [4, kColumnTiles, 32]
  float* head_weights = reinterpret_cast<float*>(queries + kQueryWords);  // [kMaxHeads]
  constexpr int kKeys = 16, kBlockKeys = kScoreWarps * kKeys;
  static_assert(kWarpKeys % kKeys == 0);  // a warp's keys are in one page
  AllowNext();
  const SequenceView& seq = keys.sequences[one_sequence ? 0 : keys.sequence_of[0]];
  const uint8_t* const* const pages = seq.pages;
  const bool one_token = seq.end - seq.begin == 1;
  const int64_t visible = (keys.positions[0] + 1) / keys.layout.ratio;
  const int rows = visible > k ? static_cast<int>(visible) : 0;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
  if (static_cast<int>(blockIdx.x) * kBlockKeys >= rows) {
    if (blockIdx.x == 0) WaitForPrevious();  // the kernel must end after the previous one
    return;
  }
  int own = static_cast<int>(blockIdx.x) * kBlockKeys + warp * kKeys;
  const int step = static_cast<int>(gridDim.x) * kBlockKeys;
  const uint32_t per_page = static_cast<uint32_t>(keys.layout.rows_per_page);
  RawKey<true> raw[2] = {};
  const auto load = [&](int first_row) {
    if (first_row >= rows) return;
    const uint32_t page = static_cast<uint32_t>(first_row) / per_page,
                   first = static_cast<uint32_t>(first_row) - page * per_page,
                   last = first + static_cast<uint32_t>(rows - 1 - first_row);  // rows after it may be unwritten
    const uint8_t* data = pages[page] + keys.layout.rows_offset;
    const uint8_t* scale = data + per_page * (kDim / 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t row = min(first + static_cast<uint32_t>(g + 8 * i), last);
      LoadKey<true>(data + row * (kDim / 2), scale + row * (kDim / 32), c, raw[i]);
    }
  };
  // With one token per step only the newest row can be of this step.
  const bool early = one_token && own + kKeys < rows;
  if (early) load(own);
  WaitForPrevious();
  OwnQueries own_queries;
  float weight = 0;
  own_queries.Ask(q, num_heads);
  if (thread < num_heads) weight = weights[thread];
  if (!early) load(own);
  own_queries.Store(queries);
  if (thread < kMaxHeads) head_weights[thread] = weight;
  uint32_t a[8][4];
  Decode<true>(raw[0], raw[1], a);
  __syncthreads();
#pragma unroll 1
  while (own < rows) {
    load(own + step);
    float acc[kColumnTiles][4];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
    const uint4* b = queries + lane;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 4) {  // no product waits for the previous one
        uint4 word[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) word[p] = b[(i * kColumnTiles + n + p) * 32];
#pragma unroll
        for (int p = 0; p < 4; ++p) Mma(acc[n + p], a[2 * i], word[p].x, word[p].y);
#pragma unroll
        for (int p = 0; p < 4; ++p) Mma(acc[n + p], a[2 * i + 1], word[p].z, word[p].w);
      }
    }
    float sum[2] = {};
    SumHeads(acc, head_weights, c, sum);
    // Lanes 0 and 1 of a group write the scores of keys g and g + 8.
    const float score = c == 0 ? sum[0] : sum[1];
    const int row = own + c * 8 + g;
    if (c < 2 && row < rows) scores[row] = score;
    own += step;
    Decode<true>(raw[0], raw[1], a);
  }
}

}  // namespace dsv4::topk
