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

// Up to 256 sorted rows of one expert.
struct ExpertTile {
  int expert, row0, count, width;  // row0: a multiple of 8; width: tokens of the instruction
};

// Pairs in the order of their experts. An expert's rows begin at a multiple of 8; the rows between are no pair (-1).
struct Sorted {
  int* histogram;     // [sorting blocks, E]: pairs, then the first row of the block's pairs
  int* totals;        // number of tiles, number of rows
  ExpertTile* tiles;
  int* pair;          // [rows]
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

// One block, one thread an expert.
__global__ void __launch_bounds__(kSortThreads) PlaceKernel(Sorted s, int num_blocks, int num_experts) {
  __shared__ int warp_sums[32];
  AllowNext();
  WaitForPrevious();
  const int e = static_cast<int>(threadIdx.x);
  int count = 0;
  if (e < num_experts) {
#pragma unroll 8
    for (int b = 0; b < num_blocks; ++b) count += s.histogram[b * num_experts + e];
  }
  const int padded = (count + 7) / 8 * 8, num_tiles = (count + kMaxTokens - 1) / kMaxTokens;
  const int rows_end = BlockScan(padded, warp_sums), tiles_end = BlockScan(num_tiles, warp_sums);
  if (e == kSortThreads - 1) s.totals[0] = tiles_end, s.totals[1] = rows_end;
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
  const int each = num_tiles == 0 ? 0 : ((count + num_tiles - 1) / num_tiles + 7) / 8 * 8;
  for (int i = 0; i < num_tiles; ++i) {
    const int begin = i * each, n = min(each, count - begin);
    s.tiles[tiles_end - num_tiles + i] = {e, row0 + begin, n, (n + 31) / 32 * 32};
  }
}

__global__ void __launch_bounds__(kSortThreads) ScatterKernel(const int* experts, const float* weights, Sorted s, int num_pairs, int num_experts) {
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
  s.weight[row] = weights[pair];
}

// x rows in sorted order, as blocks of activations.
__global__ void __launch_bounds__(256) GatherKernel(const float* x, Sorted s, uint8_t* out, int picked, int d, int slabs,
                                                    int row_blocks8, bool aligned) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  AllowNext();
  WaitForPrevious();
  const int64_t count = static_cast<int64_t>(s.totals[1] / 8) * slabs, stride = static_cast<int64_t>(gridDim.x) * 8;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32; i < count; i += stride) {
    const int slab = static_cast<int>(i % slabs), block = static_cast<int>(i / slabs);
    const int pair = s.pair[block * 8 + static_cast<int>(threadIdx.x % 32 / 4)];
    const float* row = pair >= 0 ? x + static_cast<int64_t>(pair / picked) * d + slab * 64 : nullptr;
    ConvertBlock(row, d - slab * 64, aligned, out + (static_cast<int64_t>(slab) * row_blocks8 + block) * 1024);
  }
#endif
}

struct ExpertsParams {
  const ExpertMatrices* matrices;
  Sorted sorted;
  const uint8_t* tokens;   // activations in sorted order
  int row_blocks8;         // of all activation buffers
  int slabs, scale_stride; // of K
  int row_tiles, row_steps;
  // Up
  uint8_t* hidden;
  float limit;
  // Down
  float* outputs;
  int d;
  bool bulk;  // rows of `outputs` may be stored by bulk copies
};

// A NaN stays one, unlike with fminf.
__device__ __forceinline__ float AtMost(float x, float limit) { return x > limit ? limit : x; }

// h of 64 rows of gate and up: this thread's are gate row 16 warp + 8 half + g, tokens 8 j + 2 t + {0, 1}.
template <WeightFormat kFormat, int kN>
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
  MultiplyTile<kFormat, kN, true>(s, at, rows, scales, p.slabs, acc, unit);
  const float gate_scale = m.gate.global_scale * FormatScale<kFormat>() * unit[0];
  const float up_scale = m.up.global_scale * FormatScale<kFormat>() * unit[1];
  const int column = 16 * warp + 8 * static_cast<int>(rows.half) + g;  // of the 64
  const bool inside = step * 64 + column < static_cast<int>(m.gate.rows);
  if (threadIdx.x == 128) BulkWaitRead<0>();  // the tile before has left the staging memory
  NamedBarrier(3, 256);
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * j + 2 * t + i;
      const float gate = AtMost(acc[4 * j + i] * gate_scale, p.limit);
      const float up = -AtMost(-AtMost(acc[4 * j + 2 + i] * up_scale, p.limit), p.limit);
      const float w = __shfl_sync(~0u, weight[j / 4], token % 32);
      const float h = inside ? __fdividef(gate, 1.0f + __expf(-gate)) * up * w : 0.0f;
      *reinterpret_cast<__nv_bfloat16*>(s.staging_memory + token / 8 * 1024 + ActivationByte(token % 8, column)) = __float2bfloat16_rn(h);
    }
  }
  FenceAsyncShared();
  NamedBarrier(3, 256);
  if (threadIdx.x == 128) {
    BulkStore(p.hidden + (static_cast<int64_t>(step) * p.row_blocks8 + tile.row0 / 8) * 1024, s.staging,
              static_cast<uint32_t>((tile.count + 7) / 8 * 1024));
    BulkCommit();
  }
}

template <WeightFormat kFormat, int kN>
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
  MultiplyTile<kFormat, kN, false>(s, at, rows, scales, p.slabs, acc, unit);
  const float scale = w.global_scale * FormatScale<kFormat>();
  const int row = (step * kRowTiles + static_cast<int>(threadIdx.x / 128 - 1) * 4) * 16;
  StoreSums<kN>(s, acc, {unit[0] * scale, unit[1] * scale}, tile.count, 0, min(64, p.d - row), p.bulk, [&](int c, int) -> float* {
    const int source = __shfl_sync(~0u, pair[c / 2], c % 2 * 16 + lane % 16);
    return source < 0 ? nullptr : p.outputs + static_cast<int64_t>(source) * p.d + row;
  });
}

// Persistent over (tile of an expert's tokens, 64 rows of gate and up or 128 rows of down).
template <WeightFormat kFormat, bool kUp>
__global__ void __launch_bounds__(kGemmThreads, 1) ExpertsKernel(const ExpertsParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  const GemmShared s = CarveShared<kFormat>(memory);
  AllowNext();
  InitBarriers(s);
  WaitForPrevious();
  const int num_units = p.sorted.totals[0] * p.row_steps, stride = static_cast<int>(gridDim.x);
  const int warpgroup = static_cast<int>(threadIdx.x / 128), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (warpgroup == 0) {
    FewerRegisters<32>();
    if (warp == 0) {
      Ring ring;
      for (int unit = static_cast<int>(blockIdx.x); unit < num_units; unit += stride) {
        const ExpertMatrices& m = p.matrices[p.sorted.tiles[unit / p.row_steps].expert];
        const int row_tile = kUp ? unit % p.row_steps * 4 + lane % 4 : unit % p.row_steps * kRowTiles + lane;
        const uint8_t* codes = kUp ? (lane < 4 ? m.gate.codes : m.up.codes) : m.down.codes;
        codes = row_tile < p.row_tiles ? codes + static_cast<int64_t>(row_tile) * p.slabs * TileBytes(kFormat) : nullptr;
        CopyWeights<kFormat>(s, ring, codes, p.slabs);
      }
    } else if (warp == 1 && lane == 0) {
      Ring ring;
      for (int unit = static_cast<int>(blockIdx.x); unit < num_units; unit += stride) {
        const ExpertTile tile = p.sorted.tiles[unit / p.row_steps];
        CopyTokens(s, ring, p.tokens + static_cast<int64_t>(tile.row0) * 128, static_cast<uint32_t>((tile.count + 7) / 8 * 1024),
                   int64_t{1024} * p.row_blocks8, p.slabs);
      }
    }
  } else {
    MoreRegisters<240>();
    constexpr uint32_t kTile = ChunkTileBytes(kFormat);
    const uint32_t w = static_cast<uint32_t>(warp), half = static_cast<uint32_t>(warpgroup - 1), l = 16 * static_cast<uint32_t>(lane);
    const WarpRows rows = kUp ? WarpRows{w * kTile + l, (4 + w) * kTile + l, half}
                              : WarpRows{(4 * half + w) * kTile + l, (4 * half + w) * kTile + l, 0};
    Position at;
    for (int unit = static_cast<int>(blockIdx.x); unit < num_units; unit += stride) {
      const ExpertTile tile = p.sorted.tiles[unit / p.row_steps];
      const int step = unit % p.row_steps;
      const auto run = [&]<int kN>() {
        if constexpr (kUp) {
          UpTile<kFormat, kN>(p, s, at, rows, tile, step);
        } else {
          DownTile<kFormat, kN>(p, s, at, rows, tile, step);
        }
      };
      switch (tile.width) {
        case 32: run.template operator()<32>(); break;
        case 64: run.template operator()<64>(); break;
        case 96: run.template operator()<96>(); break;
        case 128: run.template operator()<128>(); break;
        case 160: run.template operator()<160>(); break;
        case 192: run.template operator()<192>(); break;
        case 224: run.template operator()<224>(); break;
        default: run.template operator()<256>(); break;
      }
    }
    BulkWait();
  }
#endif
}

// y[t] = shared[t] + the outputs of its slots in order.
__global__ void __launch_bounds__(256) CombineKernel(const float* outputs, const float* shared, float* y, int picked, int d, bool aligned) {
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

template <bool kUp>
void LaunchProduct(const ExecContext& ctx, WeightFormat format, const ExpertsParams& p) {
  const auto launch = [&]<WeightFormat kFormat>() {
    Launch(ctx, ExpertsKernel<kFormat, kUp>, dim3(static_cast<unsigned>(NumSms())), dim3(kGemmThreads),
           static_cast<size_t>(GemmSharedBytes(kFormat)), p);
  };
  switch (format) {
    case WeightFormat::kNvfp4: launch.template operator()<WeightFormat::kNvfp4>(); break;
    case WeightFormat::kMxfp4: launch.template operator()<WeightFormat::kMxfp4>(); break;
    case WeightFormat::kFp8Block: launch.template operator()<WeightFormat::kFp8Block>(); break;
    case WeightFormat::kBf16: launch.template operator()<WeightFormat::kBf16>(); break;
    case WeightFormat::kF32: break;
  }
}

bool Aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool SupportsMatrix(const QuantTensor& w, ActivationDtype activation) {
  return w.layout == WeightLayout::kTiles && w.format != WeightFormat::kF32 &&
         (activation == ActivationDtype::kNative || !w.quantised());
}

}  // namespace

bool ExpertsPrefillSm90Supports(const ExpertsArgs& a) {
  return SupportsMatrix(a.first.gate, a.activation) && SupportsMatrix(a.first.up, a.activation) &&
         SupportsMatrix(a.first.down, a.activation) && a.first.gate.format == a.first.up.format &&
         a.matrices.size() <= kSortThreads && a.experts.num_elements() < (int64_t{1} << 30) && IsHopper();
}

void ExpertsPrefillSm90(const ExecContext& ctx, const ExpertsArgs& a) {
  const int64_t tokens = a.x.dim(0), d = a.x.dim(1), picked = a.experts.dim(1), pairs = tokens * picked;
  const int64_t f = a.first.gate.rows, num_experts = static_cast<int64_t>(a.matrices.size());
  if (pairs == 0 || d == 0) return;
  const int64_t d_slabs = CeilDiv(d, kTileCols64), f_slabs = CeilDiv(f, kTileCols64);
  const int64_t blocks = CeilDiv(pairs, kSortThreads), most_rows = (pairs + 7 * std::min(num_experts, pairs) + 7) / 8 * 8;
  const int64_t most_tiles = std::min(num_experts, pairs) + pairs / kMaxTokens;

  uint8_t* next = ctx.scratch.data;
  const auto take = [&](int64_t bytes) {
    uint8_t* p = next;
    next += CeilDiv(bytes, 256) * 256;
    DSV4_CHECK(next <= ctx.scratch.data + ctx.scratch.bytes, "scratch of ", ctx.scratch.bytes, " bytes");
    return p;
  };
  Sorted sorted;
  sorted.totals = reinterpret_cast<int*>(take(8));
  sorted.histogram = reinterpret_cast<int*>(take(blocks * num_experts * 4));
  sorted.tiles = reinterpret_cast<ExpertTile*>(take(most_tiles * static_cast<int64_t>(sizeof(ExpertTile))));
  sorted.pair = reinterpret_cast<int*>(take(most_rows * 4));
  sorted.weight = reinterpret_cast<float*>(take(most_rows * 4));
  // The op's own scratch tensors hold the activations where they are large enough: h in `hidden`; the sorted x in
  // `outputs`, which is written only after it has been read.
  const auto room = [&](const Tensor& tensor, int64_t bytes) {
    return tensor && tensor.num_bytes() >= bytes && Aligned16(tensor.data) ? static_cast<uint8_t*>(tensor.data) : take(bytes);
  };
  uint8_t* x = room(a.outputs, most_rows * d_slabs * 128);
  uint8_t* hidden = room(a.hidden, most_rows * f_slabs * 128);

  const auto* experts = a.experts.i32();
  const int num_pairs = static_cast<int>(pairs), e = static_cast<int>(num_experts);
  const dim3 sort_grid(static_cast<unsigned>(blocks)), sort_block(kSortThreads);
  Launch(ctx, CountKernel, sort_grid, sort_block, 0, experts, sorted, num_pairs, e);
  Launch(ctx, PlaceKernel, dim3(1), sort_block, 0, sorted, static_cast<int>(blocks), e);
  Launch(ctx, ScatterKernel, sort_grid, sort_block, static_cast<size_t>(32 * num_experts), experts, a.weights.f32(), sorted,
         num_pairs, e);
  const int row_blocks8 = static_cast<int>(most_rows / 8);
  Launch(ctx, GatherKernel, dim3(static_cast<unsigned>(std::min<int64_t>(CeilDiv(row_blocks8 * d_slabs, 8), NumSms() * 16))), dim3(256),
         0, a.x.f32(), sorted, x, static_cast<int>(picked), static_cast<int>(d), static_cast<int>(d_slabs), row_blocks8,
         d % 4 == 0 && Aligned16(a.x.data));
  ExpertsParams p = {};
  p.matrices = a.matrices.data();
  p.sorted = sorted;
  p.row_blocks8 = row_blocks8;
  p.hidden = hidden;
  p.limit = a.limit;
  p.outputs = a.outputs.f32();
  p.d = static_cast<int>(d);
  p.bulk = d % 4 == 0 && Aligned16(a.outputs.data);

  p.tokens = x;
  p.slabs = static_cast<int>(d_slabs);
  p.scale_stride = static_cast<int>(CeilDiv(d, kFp8BlockSize));
  p.row_tiles = static_cast<int>(CeilDiv(f, kTileRows16));
  p.row_steps = static_cast<int>(CeilDiv(f, 64));
  LaunchProduct<true>(ctx, a.first.gate.format, p);

  p.tokens = hidden;
  p.slabs = static_cast<int>(f_slabs);
  p.scale_stride = static_cast<int>(CeilDiv(f, kFp8BlockSize));
  p.row_tiles = static_cast<int>(CeilDiv(d, kTileRows16));
  p.row_steps = static_cast<int>(CeilDiv(p.row_tiles, kRowTiles));
  LaunchProduct<false>(ctx, a.first.down.format, p);

  Launch(ctx, CombineKernel, dim3(static_cast<unsigned>(tokens)), dim3(256), 0, a.outputs.f32(), a.shared.f32(), a.y.f32(),
         static_cast<int>(picked), static_cast<int>(d),
         d % 4 == 0 && Aligned16(a.outputs.data) && Aligned16(a.shared.data) && Aligned16(a.y.data));
}

}  // namespace dsv4
