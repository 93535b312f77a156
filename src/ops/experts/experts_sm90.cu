#include "ops/experts/experts_sm90.h"

#include <algorithm>

#include "device/launch.cuh"
#include "ops/gemm_sm90.cuh"

namespace dsv4 {

namespace {

using namespace sm90;  // NOLINT: this file is sm90

constexpr int kSortThreads = 1024;  // also the pairs of a sorting block, and the most experts

bool IsHopper() {
  static const bool hopper = [] {
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 && minor == 0;
  }();
  return hopper;
}

// Up to 256 sorted rows of one expert, 128 with activations in two parts. Tiles are in classes by the width of the instruction that they need, wide ones
// first; each class has its own kernel (one with all widths is too much for the compiler's register allocation).
struct ExpertTile {
  int expert, row0, count;  // row0: a multiple of 8
};
constexpr int kNumWidths = 6;
__host__ __device__ constexpr int Width(int c) {
  constexpr int kWidths[kNumWidths] = {256, 224, 192, 128, 64, 32};
  return kWidths[c];
}

struct Totals {
  int rows;
  int class_end[kNumWidths];  // of `tiles`
};

// Pairs in the order of their experts. An expert's rows begin at a multiple of 8; the rows between are no pair (-1).
struct Sorted {
  int* histogram;     // [sorting blocks, E]: pairs, then the first row of the block's pairs
  Totals* totals;
  ExpertTile* tiles;
  int* pair;          // [rows]
  int* row;           // [pairs]: of the pair
  float* weight;      // [rows]: of the pair; 0 for none
};

__device__ __forceinline__ int ExpertOf(const int* experts, int pair, int num_experts) {
  return min(max(experts[pair], 0), num_experts - 1);
}

__global__ void __launch_bounds__(kSortThreads) CountKernel(const int* experts, Sorted s, int num_pairs, int num_experts) {
  __shared__ int count[kSortThreads];
  const int i = static_cast<int>(threadIdx.x), pair = static_cast<int>(blockIdx.x) * kSortThreads + i;
  AllowNext();
  count[i] = 0;
  __syncthreads();
  WaitForPrevious();
  if (pair < num_pairs) atomicAdd(&count[ExpertOf(experts, pair, num_experts)], 1);
  __syncthreads();
  if (i < num_experts) s.histogram[static_cast<int>(blockIdx.x) * num_experts + i] = count[i];
}

// Inclusive sum over a block of 1024 threads.
__device__ __forceinline__ int BlockScan(int value, int* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    int sum = warp_sums[lane];
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  if (warp > 0) value += warp_sums[warp - 1];
  __syncthreads();
  return value;
}

// The value of the block's last thread.
__device__ __forceinline__ int BlockBroadcastLast(int value, int* shared) {
  if (threadIdx.x == kSortThreads - 1) shared[0] = value;
  __syncthreads();
  value = shared[0];
  __syncthreads();
  return value;
}

// One block, one thread an expert.
__global__ void __launch_bounds__(kSortThreads) PlaceKernel(Sorted s, int num_blocks, int num_experts, int most_tokens) {
  __shared__ int warp_sums[32];
  AllowNext();
  WaitForPrevious();
  const int e = static_cast<int>(threadIdx.x);
  int count = 0;
  if (e < num_experts) {
#pragma unroll 8
    for (int b = 0; b < num_blocks; ++b) count += s.histogram[b * num_experts + e];
  }
  const int padded = (count + 7) / 8 * 8, num_tiles = (count + most_tokens - 1) / most_tokens;
  const int each = num_tiles == 0 ? 0 : ((count + num_tiles - 1) / num_tiles + 7) / 8 * 8;
  const int rows_end = BlockScan(padded, warp_sums);
  if (e == kSortThreads - 1) s.totals->rows = rows_end;
  int tile = 0, class_begin = 0;
#pragma unroll
  for (int c = 0; c < kNumWidths; ++c) {
    const bool mine = each <= Width(c) && (c + 1 == kNumWidths || each > Width(min(c + 1, kNumWidths - 1)));
    const int end = BlockScan(mine ? num_tiles : 0, warp_sums);
    if (mine) tile = class_begin + end - num_tiles;
    if (e == kSortThreads - 1) s.totals->class_end[c] = class_begin + end;
    class_begin += BlockBroadcastLast(end, warp_sums);
  }
  if (e >= num_experts) return;
  const int row0 = rows_end - padded;
  int row = row0;
  for (int b = 0; b < num_blocks; ++b) {
    int& h = s.histogram[b * num_experts + e];
    const int in_block = h;
    h = row;
    row += in_block;
  }
  for (; row < rows_end; ++row) s.pair[row] = -1, s.weight[row] = 0;
  for (int i = 0; i < num_tiles; ++i) {
    const int begin = i * each;
    s.tiles[tile + i] = {e, row0 + begin, min(each, count - begin)};
  }
}

__global__ void __launch_bounds__(kSortThreads) ScatterKernel(const int* experts, const float* weights, Sorted s,
                                                              int num_pairs, int num_experts) {
  extern __shared__ uint8_t memory[];
  uint8_t* count = memory;  // [32 warps][E]
  const int i = static_cast<int>(threadIdx.x), warp = i / 32, pair = static_cast<int>(blockIdx.x) * kSortThreads + i;
  AllowNext();
  for (int j = i; j < 32 * num_experts; j += kSortThreads) count[j] = 0;
  __syncthreads();
  WaitForPrevious();
  const int e = pair < num_pairs ? ExpertOf(experts, pair, num_experts) : -1;
  const unsigned same = __match_any_sync(~0u, e), before = same & ((1u << (i % 32)) - 1);
  if (e >= 0 && before == 0) count[warp * num_experts + e] = static_cast<uint8_t>(__popc(same));
  __syncthreads();
  if (e < 0) return;
  int rank = __popc(before);
  for (int w = 0; w < warp; ++w) rank += count[w * num_experts + e];
  const int row = s.histogram[static_cast<int>(blockIdx.x) * num_experts + e] + rank;
  s.pair[row] = pair;
  s.row[pair] = row;
  s.weight[row] = weights[pair];
}

// x as blocks of activations in sorted order: every x is read once and written to the rows of its token's pairs. A warp
// takes 8 tokens x 64 columns. The rows of no pair become zeros.
template <bool kHalf>
__global__ void __launch_bounds__(256) SpreadKernel(const float* x, Sorted s, uint8_t* out, int num_tokens, int picked, int d,
                                                    int slabs, int parts, int row_blocks8, bool aligned) {
  AllowNext();
  WaitForPrevious();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32, stride = static_cast<int64_t>(gridDim.x) * 8;
  const int64_t count = static_cast<int64_t>((num_tokens + 7) / 8) * slabs;
  for (int64_t i = first; i < count; i += stride) {
    const int slab = static_cast<int>(i % slabs), token = static_cast<int>(i / slabs) * 8 + lane / 4;
    if (token >= num_tokens) continue;
    BlockValues values;
    values.Load(x + static_cast<int64_t>(token) * d + slab * 64, d - slab * 64, aligned);
    for (int part = 0; part < parts; ++part) {
      for (int a = 0; a < picked; ++a) {
        const int row = s.row[static_cast<int64_t>(token) * picked + a];
        values.Store<kHalf>(out + ((static_cast<int64_t>(slab) * parts + part) * row_blocks8 + row / 8) * 1024, row % 8);
      }
      if (parts > 1) values.KeepRest<kHalf>();
    }
  }
  for (int64_t i = first; i * 32 < s.totals->rows; i += stride) {
    const int mine = static_cast<int>(i) * 32 + lane;
    unsigned empty = __ballot_sync(~0u, mine < s.totals->rows && s.pair[mine] < 0);
    for (; empty != 0; empty &= empty - 1) {
      const int row = static_cast<int>(i) * 32 + __ffs(static_cast<int>(empty)) - 1;
      for (int j = lane; j < slabs * parts * 8; j += 32) {
        uint8_t* line = out + (static_cast<int64_t>(j / 8) * row_blocks8 + row / 8) * 1024 + row % 8 * 128;
        reinterpret_cast<uint4*>(line)[j % 8] = uint4{};
      }
    }
  }
}

struct ExpertsParams {
  const ExpertMatrices* matrices;
  Sorted sorted;
  const uint8_t* tokens;   // activations in sorted order
  int row_blocks8;         // of all activation buffers
  int slabs, scale_stride; // of K
  int row_tiles, row_steps;
  int first_class, last_class;  // of the kernel's tiles
  bool first;              // kernel of its product
  // Up
  uint8_t* hidden;
  float limit;
  // Down
  float* outputs;
  int d;
};

// A NaN stays one, unlike with fminf.
[[maybe_unused]] __device__ __forceinline__ float AtMost(float x, float limit) { return x > limit ? limit : x; }

// h of 64 rows of gate and up: this thread's are gate row 16 warp + 8 half + g, tokens 8 j + 2 t + {0, 1}.
template <WeightFormat kFormat, int kN, int kParts>
__device__ __forceinline__ void UpTile(const ExpertsParams& p, const GemmShared& s, Position& at,
                                       const WarpRows& rows, const ExpertTile& tile, int step) {
  const ExpertMatrices& m = p.matrices[tile.expert];
  const int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const int row_tile = step * 4 + warp;
  Fp8Scales scales;
  if (kFormat == WeightFormat::kFp8Block && row_tile < p.row_tiles) {
    scales.row[0] = reinterpret_cast<const float*>(m.gate.block_scale) + static_cast<int64_t>(row_tile) * p.scale_stride;
    scales.row[1] = reinterpret_cast<const float*>(m.up.block_scale) + static_cast<int64_t>(row_tile) * p.scale_stride;
  }
  float weight[(kN + 31) / 32];  // of token 32 i + lane
#pragma unroll
  for (int i = 0; i < (kN + 31) / 32; ++i) {
    weight[i] = 32 * i + lane < (tile.count + 7) / 8 * 8 ? p.sorted.weight[tile.row0 + 32 * i + lane] : 0.0f;
  }
  float acc[kN / 2], unit[2];
  MultiplyTile<kFormat, kN, kParts, true>(s, at, rows, scales, p.slabs, acc, unit);
  const float gate_scale = m.gate.global_scale * FormatScale<kFormat>() * unit[0];
  const float up_scale = m.up.global_scale * FormatScale<kFormat>() * unit[1];
  const int column = 16 * warp + 8 * static_cast<int>(rows.half) + g;  // of the 64
  const bool inside = step * 64 + column < static_cast<int>(m.gate.rows);
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * j + 2 * t + i;
      const float gate = AtMost(acc[4 * j + i] * gate_scale, p.limit);
      const float up = -AtMost(-AtMost(acc[4 * j + 2 + i] * up_scale, p.limit), p.limit);
      const float w = __shfl_sync(~0u, weight[j / 4], token % 32);
      acc[4 * j + i] = inside ? __fdividef(gate, 1.0f + __expf(-gate)) * up * w : 0.0f;
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (threadIdx.x == 128) BulkWaitRead<0>();  // what was there has left the staging memory
    NamedBarrier(3, 256);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint8_t* to = s.staging_memory + j * 1024 + ActivationByte(2 * t + i, column);
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(PackInputs<kHalf<kFormat>>(acc[4 * j + i], 0.0f));
        if (part + 1 < kParts) acc[4 * j + i] = InputRest<kHalf<kFormat>>(acc[4 * j + i]);
      }
    }
    FenceAsyncShared();
    NamedBarrier(3, 256);
    if (threadIdx.x == 128) {
      const int64_t block = (static_cast<int64_t>(step) * kParts + part) * p.row_blocks8 + tile.row0 / 8;
      BulkStore(p.hidden + block * 1024, s.staging, static_cast<uint32_t>((tile.count + 7) / 8 * 1024));
      BulkCommit();
    }
  }
}

template <WeightFormat kFormat, int kN, int kParts>
__device__ __forceinline__ void DownTile(const ExpertsParams& p, const GemmShared& s, Position& at,
                                         const WarpRows& rows, const ExpertTile& tile, int step) {
  const QuantTensor& w = p.matrices[tile.expert].down;
  const int lane = static_cast<int>(threadIdx.x % 32), row_tile = step * kRowTiles + static_cast<int>(threadIdx.x / 32) - 4;
  Fp8Scales scales;
  if (kFormat == WeightFormat::kFp8Block && row_tile < p.row_tiles) {
    scales.row[0] = scales.row[1] = reinterpret_cast<const float*>(w.block_scale) + static_cast<int64_t>(row_tile) * p.scale_stride;
  }
  int pair[(kN + 31) / 32];  // of token 32 i + lane
#pragma unroll
  for (int i = 0; i < (kN + 31) / 32; ++i) pair[i] = 32 * i + lane < tile.count ? p.sorted.pair[tile.row0 + 32 * i + lane] : -1;
  float acc[kN / 2], unit[2];
  MultiplyTile<kFormat, kN, kParts, false>(s, at, rows, scales, p.slabs, acc, unit);
  const float scale = w.global_scale * FormatScale<kFormat>();
  const int row = row_tile * 16;
  StoreSums<kN>(acc, {unit[0] * scale, unit[1] * scale}, tile.count, 0, p.d - row, [&](int j, int token) -> float* {
    const int source = __shfl_sync(~0u, pair[j / 4], token % 32);
    return source < 0 ? nullptr : p.outputs + static_cast<int64_t>(source) * p.d + row;
  });
}

// Persistent over (tile of an expert's tokens, 64 rows of gate and up or 128 rows of down), for the tiles of one width.
// The kernels of a product are independent: only the first waits for what is in front of it, and lets the next start
// after that; the others fill the multiprocessors that it leaves, and wait at their end, so that what comes behind them
// finds all done.
template <WeightFormat kFormat, bool kUp, int kN, int kParts>
__global__ void __launch_bounds__(kGemmThreads, 1) ExpertsKernel(const ExpertsParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  const GemmShared s = CarveShared<kFormat>(memory);
  InitBarriers(s);
  if (p.first) WaitForPrevious();
  AllowNext();
  const ExpertTile* const tiles = p.sorted.tiles;
  const int tiles_begin = p.first_class == 0 ? 0 : p.sorted.totals->class_end[p.first_class - 1];
  const int num_units = p.sorted.totals->class_end[p.last_class] * p.row_steps, stride = static_cast<int>(gridDim.x);
  const int first_unit = tiles_begin * p.row_steps + static_cast<int>(blockIdx.x);
  const int warpgroup = static_cast<int>(threadIdx.x / 128), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (warpgroup == 0) {
    FewerRegisters<40>();
    if (warp > 1) return;
    if (warp == 0) {
      Ring ring;
      for (int unit = first_unit; unit < num_units; unit += stride) {
        const ExpertMatrices& m = p.matrices[tiles[unit / p.row_steps].expert];
        const int row_tile = kUp ? unit % p.row_steps * 4 + lane % 4 : unit % p.row_steps * kRowTiles + lane;
        const uint8_t* codes = kUp ? (lane < 4 ? m.gate.codes : m.up.codes) : m.down.codes;
        codes = row_tile < p.row_tiles ? codes + static_cast<int64_t>(row_tile) * p.slabs * TileBytes(kFormat) : nullptr;
        CopyWeights<kFormat>(s, ring, codes, p.slabs);
      }
      if (!p.first) WaitForPrevious();
    } else if (lane == 0) {
      Ring ring;
      for (int unit = first_unit; unit < num_units; unit += stride) {
        const ExpertTile tile = tiles[unit / p.row_steps];
        CopyTokens<kParts>(s, ring, p.tokens + static_cast<int64_t>(tile.row0) * 128, static_cast<uint32_t>((tile.count + 7) / 8 * 1024),
                   int64_t{1024} * p.row_blocks8, p.slabs);
      }
    }
  } else {
    MoreRegisters<232>();
    constexpr uint32_t kTile = ChunkTileBytes(kFormat);
    const uint32_t w = static_cast<uint32_t>(warp), half = static_cast<uint32_t>(warpgroup - 1);
    const uint32_t l = 16 * static_cast<uint32_t>(lane);
    const WarpRows rows = kUp ? WarpRows{w * kTile + l, (4 + w) * kTile + l, half}
                              : WarpRows{(4 * half + w) * kTile + l, (4 * half + w) * kTile + l, 0};
    Position at;
    for (int unit = first_unit; unit < num_units; unit += stride) {
      const ExpertTile tile = tiles[unit / p.row_steps];
      if constexpr (kUp) {
        UpTile<kFormat, kN, kParts>(p, s, at, rows, tile, unit % p.row_steps);
      } else {
        DownTile<kFormat, kN, kParts>(p, s, at, rows, tile, unit % p.row_steps);
      }
      if (kUp && unit + stride >= num_units) BulkWait();
    }
    // No code here: see gemm_sm90.cuh about registers.
  }
#endif
}

// y[t] = shared[t] + the outputs of its slots in order.
__global__ void __launch_bounds__(256) CombineKernel(const float* outputs, const float* shared, float* y, int picked,
                                                     int d, bool aligned) {
  AllowNext();
  WaitForPrevious();
  const int64_t t = blockIdx.x;
  const float* rows = outputs + t * picked * d;
  if (aligned) {
    for (int c = static_cast<int>(threadIdx.x) * 4; c < d; c += 1024) {
      float4 sum = *reinterpret_cast<const float4*>(shared + t * d + c);
      for (int a = 0; a < picked; ++a) {
        const float4 v = __ldcs(reinterpret_cast<const float4*>(rows + static_cast<int64_t>(a) * d + c));
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      *reinterpret_cast<float4*>(y + t * d + c) = sum;
    }
  } else {
    for (int c = static_cast<int>(threadIdx.x); c < d; c += 256) {
      float sum = shared[t * d + c];
      for (int a = 0; a < picked; ++a) sum += rows[static_cast<int64_t>(a) * d + c];
      y[t * d + c] = sum;
    }
  }
}

template <WeightFormat kFormat, bool kUp, int kParts, int kFirst, int kLast>
void LaunchClasses(const ExecContext& ctx, ExpertsParams p) {
  p.first_class = kFirst;
  p.last_class = kLast;
  p.first = kFirst == (kParts == 1 ? 0 : 3);
  Launch(ctx, ExpertsKernel<kFormat, kUp, Width(kFirst), kParts>, dim3(static_cast<unsigned>(NumSms())), dim3(kGemmThreads),
         static_cast<size_t>(GemmSharedBytes(kFormat)), p);
}

template <WeightFormat kFormat, bool kUp>
void LaunchFormat(const ExecContext& ctx, const ExpertsParams& p, int parts) {
  if (parts == 2) {  // no wider tiles: see CopyTokens
    LaunchClasses<kFormat, kUp, 2, 3, 3>(ctx, p);
    LaunchClasses<kFormat, kUp, 2, 4, 4>(ctx, p);
    LaunchClasses<kFormat, kUp, 2, 5, 5>(ctx, p);
  } else if constexpr (kFormat != WeightFormat::kBf16) {
    LaunchClasses<kFormat, kUp, 1, 0, 0>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 1, 1>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 2, 2>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 3, 3>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 4, 4>(ctx, p);
    LaunchClasses<kFormat, kUp, 1, 5, 5>(ctx, p);
  }
}

template <bool kUp>
void LaunchProduct(const ExecContext& ctx, WeightFormat format, const ExpertsParams& p, int parts) {
  switch (format) {
    case WeightFormat::kNvfp4: return LaunchFormat<WeightFormat::kNvfp4, kUp>(ctx, p, parts);
    case WeightFormat::kMxfp4: return LaunchFormat<WeightFormat::kMxfp4, kUp>(ctx, p, parts);
    case WeightFormat::kFp8Block: return LaunchFormat<WeightFormat::kFp8Block, kUp>(ctx, p, parts);
    case WeightFormat::kBf16: return LaunchFormat<WeightFormat::kBf16, kUp>(ctx, p, parts);
    case WeightFormat::kF32: break;
  }
}

bool HalfInputs(const QuantTensor& w) { return w.format == WeightFormat::kNvfp4 || w.format == WeightFormat::kFp8Block; }

bool Aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool SupportsMatrix(const QuantTensor& w, ActivationDtype activation) {
  return w.layout == WeightLayout::kTiles && w.format != WeightFormat::kF32 &&
         (activation == ActivationDtype::kNative || !w.quantised());
}

}  // namespace

bool ExpertsPrefillSm90Supports(const ExpertsArgs& a) {
  return SupportsMatrix(a.first.gate, a.activation) && SupportsMatrix(a.first.up, a.activation) &&
         SupportsMatrix(a.first.down, a.activation) && a.first.gate.format == a.first.up.format &&
         HalfInputs(a.first.gate) == HalfInputs(a.first.down) &&
         a.matrices.size() <= kSortThreads && a.experts.num_elements() < (int64_t{1} << 30) && IsHopper();
}

void ExpertsPrefillSm90(const ExecContext& ctx, const ExpertsArgs& a, int parts) {
  if (a.first.gate.format == WeightFormat::kBf16 || a.first.down.format == WeightFormat::kBf16) parts = 2;
  const int64_t tokens = a.x.dim(0), d = a.x.dim(1), picked = a.experts.dim(1), pairs = tokens * picked;
  const int64_t f = a.first.gate.rows, num_experts = static_cast<int64_t>(a.matrices.size());
  if (pairs == 0 || d == 0) return;
  const int64_t d_slabs = CeilDiv(d, kTileCols64), f_slabs = CeilDiv(f, kTileCols64);
  const int64_t blocks = CeilDiv(pairs, kSortThreads), most_rows = (pairs + 7 * std::min(num_experts, pairs) + 7) / 8 * 8;
  const int64_t most_tiles = std::min(num_experts, pairs) + pairs / (kMaxTokens / parts);

  uint8_t* next = ctx.scratch.data;
  const auto take = [&](int64_t bytes) {
    uint8_t* p = next;
    next += CeilDiv(bytes, 256) * 256;
    DSV4_CHECK(next <= ctx.scratch.data + ctx.scratch.bytes, "scratch of ", ctx.scratch.bytes, " bytes");
    return p;
  };
  Sorted sorted;
  sorted.totals = reinterpret_cast<Totals*>(take(static_cast<int64_t>(sizeof(Totals))));
  sorted.histogram = reinterpret_cast<int*>(take(blocks * num_experts * 4));
  sorted.tiles = reinterpret_cast<ExpertTile*>(take(most_tiles * static_cast<int64_t>(sizeof(ExpertTile))));
  sorted.pair = reinterpret_cast<int*>(take(most_rows * 4));
  sorted.row = reinterpret_cast<int*>(take(pairs * 4));
  sorted.weight = reinterpret_cast<float*>(take(most_rows * 4));
  // The op's own scratch tensors hold the activations where they are large enough: h in `hidden`; the sorted x in
  // `outputs`, which is written only after it has been read.
  const auto room = [&](const Tensor& tensor, int64_t bytes) {
    return tensor && tensor.num_bytes() >= bytes && Aligned16(tensor.data) ? static_cast<uint8_t*>(tensor.data) : take(bytes);
  };
  uint8_t* x = room(a.outputs, most_rows * d_slabs * parts * 128);
  uint8_t* hidden = room(a.hidden, most_rows * f_slabs * parts * 128);

  const auto* experts = a.experts.i32();
  const int num_pairs = static_cast<int>(pairs), e = static_cast<int>(num_experts);
  const dim3 sort_grid(static_cast<unsigned>(blocks)), sort_block(kSortThreads);
  Launch(ctx, CountKernel, sort_grid, sort_block, 0, experts, sorted, num_pairs, e);
  Launch(ctx, PlaceKernel, dim3(1), sort_block, 0, sorted, static_cast<int>(blocks), e, kMaxTokens / parts);
  Launch(ctx, ScatterKernel, sort_grid, sort_block, static_cast<size_t>(32 * num_experts), experts, a.weights.f32(), sorted,
         num_pairs, e);
  const int row_blocks8 = static_cast<int>(most_rows / 8);
  Launch(ctx, HalfInputs(a.first.gate) ? SpreadKernel<true> : SpreadKernel<false>, dim3(static_cast<unsigned>(std::min<int64_t>(CeilDiv(CeilDiv(tokens, 8) * d_slabs, 8), NumSms() * 16))),
         dim3(256), 0, a.x.f32(), sorted, x, static_cast<int>(tokens), static_cast<int>(picked), static_cast<int>(d),
         static_cast<int>(d_slabs), parts, row_blocks8, d % 4 == 0 && Aligned16(a.x.data));
  ExpertsParams p = {};
  p.matrices = a.matrices.data();
  p.sorted = sorted;
  p.row_blocks8 = row_blocks8;
  p.hidden = hidden;
  p.limit = a.limit;
  p.outputs = a.outputs.f32();
  p.d = static_cast<int>(d);

  p.tokens = x;
  p.slabs = static_cast<int>(d_slabs);
  p.scale_stride = static_cast<int>(CeilDiv(d, kFp8BlockSize));
  p.row_tiles = static_cast<int>(CeilDiv(f, kTileRows16));
  p.row_steps = static_cast<int>(CeilDiv(f, 64));
  LaunchProduct<true>(ctx, a.first.gate.format, p, parts);

  p.tokens = hidden;
  p.slabs = static_cast<int>(f_slabs);
  p.scale_stride = static_cast<int>(CeilDiv(f, kFp8BlockSize));
  p.row_tiles = static_cast<int>(CeilDiv(d, kTileRows16));
  p.row_steps = static_cast<int>(CeilDiv(p.row_tiles, kRowTiles));
  LaunchProduct<false>(ctx, a.first.down.format, p, parts);

  Launch(ctx, CombineKernel, dim3(static_cast<unsigned>(tokens)), dim3(256), 0, a.outputs.f32(), a.shared.f32(), a.y.f32(),
         static_cast<int>(picked), static_cast<int>(d),
         d % 4 == 0 && Aligned16(a.outputs.data) && Aligned16(a.shared.data) && Aligned16(a.y.data));
}

}  // namespace dsv4
