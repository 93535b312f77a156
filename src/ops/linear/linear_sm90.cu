#include "ops/linear/linear_sm90.h"

#include <algorithm>

#include "device/launch.cuh"
#include "ops/gemm_sm90.cuh"

namespace dsv4 {

namespace {

using namespace sm90;  // NOLINT: this file is sm90

bool IsHopper() {
  static const bool hopper = [] {
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 && minor == 0;
  }();
  return hopper;
}

// Activations are converted while the product runs where that is faster: ConvertKernel does the first token tiles, two warps
// of each of the product's blocks the rest, tile by tile; ready[tile] counts the warps that are through with it.
struct Conversion {
  const float* x;  // [T, groups * k]
  uint8_t* out;    // blocks: block column c of group g is number g * slabs + c
  int* ready;
  int num_tokens, row_blocks8, groups, k, slabs, parts;
  int tile_blocks8;  // rows of a token tile / 8
  int first_tiles;   // by ConvertKernel
  bool aligned;
};
constexpr int kMaxTokenTiles = 1024;

struct LinearParams {
  Conversion conversion;
  const uint8_t* codes;
  const float* scales;   // FP8
  float global_scale;
  const uint8_t* tokens; // activations in blocks
  float* y;              // of the first token
  int64_t y_stride;
  int num_tokens, row_blocks8;  // rows of activations / 8
  int n;                        // rows of a group
  int groups, slabs, scale_stride;
  int row_steps, token_steps;   // tiles of a group
};

struct LinearTile {
  int group, token0, row_tile0;  // row tile of the whole matrix
  __device__ __forceinline__ LinearTile(const LinearParams& p, int tile, int tile_tokens) {
    const int row_step = tile % p.row_steps;
    group = tile / p.row_steps % p.groups;
    token0 = tile / p.row_steps / p.groups * tile_tokens;
    row_tile0 = group * p.n / 16 + row_step * kRowTiles;
  }
};

struct BlockSource {
  const float* x;
  int columns;
};

// Row lane / 4 of block `column`, parts not counted, of rows 8 block8 ..; x is null outside.
__device__ __forceinline__ BlockSource SourceOf(const Conversion& c, int block8, int column) {
  const int group = column / c.slabs, k0 = column % c.slabs * 64;
  const int token = block8 * 8 + static_cast<int>(threadIdx.x % 32 / 4);
  return {token < c.num_tokens ? c.x + (static_cast<int64_t>(token) * c.groups + group) * c.k + k0 : nullptr, c.k - k0};
}

template <bool kHalf>
__device__ __forceinline__ void StoreBlocks(const Conversion& c, int block8, int column, BlockValues& values) {
  const int r = static_cast<int>(threadIdx.x % 32 / 4);
  for (int part = 0; part < c.parts; ++part) {
    values.Store<kHalf>(c.out + ((static_cast<int64_t>(column) * c.parts + part) * c.row_blocks8 + block8) * 1024, r);
    if (c.parts > 1) values.KeepRest<kHalf>();
  }
}

// A warp converts blocks begin, begin + stride, ... of some token tiles, two at a time.
template <bool kHalf>
__device__ __forceinline__ void ConvertTiles(const Conversion& c, int tile, int num_tiles, int begin, int stride) {
  const int block8 = tile * c.tile_blocks8, columns = c.groups * c.slabs;
  const int count = min(num_tiles * c.tile_blocks8, c.row_blocks8 - block8) * columns;
  for (int i = begin; i < count; i += 2 * stride) {
    const int row[2] = {block8 + i / columns, block8 + (i + stride) / columns};
    const int column[2] = {i % columns, (i + stride) % columns};
    BlockValues values[2];
    values[0].Load(SourceOf(c, row[0], column[0]).x, SourceOf(c, row[0], column[0]).columns, c.aligned);
    if (i + stride < count) values[1].Load(SourceOf(c, row[1], column[1]).x, SourceOf(c, row[1], column[1]).columns, c.aligned);
    StoreBlocks<kHalf>(c, row[0], column[0], values[0]);
    if (i + stride < count) StoreBlocks<kHalf>(c, row[1], column[1], values[1]);
  }
}

template <WeightFormat kFormat, int kN, int kParts>
__global__ void __launch_bounds__(kGemmThreads, 1) LinearKernel(const LinearParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  const GemmShared s = CarveShared<kFormat>(memory);
  AllowNext();
  InitBarriers(s);
  const int num_tiles = p.row_steps * p.groups * p.token_steps;
  const int warpgroup = static_cast<int>(threadIdx.x / 128), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (warpgroup == 0) {
    FewerRegisters<56>();
    if (warp == 0) {  // weights: no kernel writes them, so they need not wait
      Ring ring;
      for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles; tile += static_cast<int>(gridDim.x)) {
        const LinearTile at(p, tile, kN);
        const int end = ((at.group + 1) * p.n + 15) / 16, row_tile = at.row_tile0 + lane;
        const uint8_t* codes = row_tile < end ? p.codes + static_cast<int64_t>(row_tile) * p.slabs * TileBytes(kFormat) : nullptr;
        CopyWeights<kFormat>(s, ring, codes, p.slabs);
      }
      return;
    }
    WaitForPrevious();
    if (warp == 1) {
      if (lane != 0) return;
      Ring ring;
      for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles; tile += static_cast<int>(gridDim.x)) {
        const LinearTile at(p, tile, kN);
        const int token_tile = at.token0 / kN;
        if (token_tile >= p.conversion.first_tiles) {
          WaitForCount(p.conversion.ready + token_tile, 2 * static_cast<int>(gridDim.x));
        }
        const int block = at.token0 / 8, blocks = min(kN / 8, p.row_blocks8 - block);
        const uint8_t* tokens = p.tokens + (static_cast<int64_t>(at.group) * p.slabs * kParts * p.row_blocks8 + block) * 1024;
        CopyTokens<kParts>(s, ring, tokens, static_cast<uint32_t>(blocks) * 1024, int64_t{1024} * p.row_blocks8, p.slabs);
      }
      return;
    }
    const int converter = 2 * static_cast<int>(blockIdx.x) + warp - 2;
    for (int tile = p.conversion.first_tiles; tile < p.token_steps; ++tile) {
      ConvertTiles<kHalf<kFormat>>(p.conversion, tile, 1, converter, 2 * static_cast<int>(gridDim.x));
      SignalCount(p.conversion.ready + tile);
    }
  } else {
    MoreRegisters<224>();
    WaitForPrevious();
    const int tile_of_block = 4 * (warpgroup - 1) + warp;
    const uint32_t offset = static_cast<uint32_t>(tile_of_block * ChunkTileBytes(kFormat) + 16 * lane);
    const WarpRows rows = {offset, offset, 0};
    Position position;
    for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles; tile += static_cast<int>(gridDim.x)) {
      const LinearTile at(p, tile, kN);
      const int row_tile = at.row_tile0 + tile_of_block;
      Fp8Scales scales;
      if (kFormat == WeightFormat::kFp8Block && row_tile < ((at.group + 1) * p.n + 15) / 16) {
        scales.row[0] = scales.row[1] = p.scales + static_cast<int64_t>(row_tile) * p.scale_stride;
      }
      float acc[kN / 2], unit[2];
      MultiplyTile<kFormat, kN, kParts, false>(s, position, rows, scales, p.slabs, acc, unit);
      const float scale = p.global_scale * FormatScale<kFormat>();
      const int row = row_tile * 16 - at.group * p.n;  // negative when a group does not begin with a tile
      float* y = p.y + static_cast<int64_t>(at.token0) * p.y_stride + at.group * p.n + row;
      StoreSums<kN>(acc, {unit[0] * scale, unit[1] * scale}, p.num_tokens - at.token0, -row, p.n - row,
                    [&](int, int token) { return y + token * p.y_stride; });
    }
  }
#endif
}

template <bool kHalf>
__global__ void __launch_bounds__(256) ConvertKernel(const Conversion c) {
  AllowNext();
  WaitForPrevious();
  if (blockIdx.x == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < kMaxTokenTiles; i += 256) c.ready[i] = 0;
  }
  ConvertTiles<kHalf>(c, 0, c.first_tiles, static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32), static_cast<int>(gridDim.x) * 8);
}

template <WeightFormat kFormat, int kN, int kParts>
void LaunchTiles(const ExecContext& ctx, LinearParams p) {
  p.token_steps = static_cast<int>(CeilDiv(p.num_tokens, kN));
  const int tiles_of_step = p.row_steps * p.groups, tiles = tiles_of_step * p.token_steps, grid = std::min(tiles, NumSms());
  p.conversion.tile_blocks8 = kN / 8;
  // The converting warps keep up when a tile's activations serve many rows: at 56 row steps overlapping was 6 to 9 % faster
  // on an H200, at 33 it was 6 % slower, below 16 a third. What the first round needs is always converted before.
  constexpr int kOverlapRowSteps = 48;
  p.conversion.first_tiles =
      p.row_steps >= kOverlapRowSteps ? std::min(static_cast<int>(CeilDiv(grid, tiles_of_step)), p.token_steps) : p.token_steps;
  Launch(ctx, ConvertKernel<kHalf<kFormat>>, dim3(static_cast<unsigned>(NumSms() * 8)), dim3(256), 0, p.conversion);
  Launch(ctx, LinearKernel<kFormat, kN, kParts>, dim3(static_cast<unsigned>(grid)), dim3(kGemmThreads),
         static_cast<size_t>(GemmSharedBytes(kFormat)), p);
}

// Tokens of a tile: the width that takes the fewest rounds of the whole GPU, wide tiles first.
int TileTokens(const LinearParams& p) {
  int best = p.conversion.parts == 1 ? 256 : 128;
  double best_cost = 1e30;
  for (const int n : {256, 192, 128, 64}) {
    if (p.conversion.parts == 1 ? n < 128 : n > 128) continue;  // many tokens; two parts share a stage
    const int64_t tiles = p.row_steps * p.groups * CeilDiv(p.num_tokens, n);
    const double cost = static_cast<double>(CeilDiv(tiles, NumSms())) * (n + 24);
    if (cost < best_cost * 0.97) best = n, best_cost = cost;
  }
  return best;
}

template <WeightFormat kFormat>
void LaunchFormat(const ExecContext& ctx, const LinearParams& p) {
  const int tokens = TileTokens(p);
  if (p.conversion.parts == 2) {
    if (tokens == 64) return LaunchTiles<kFormat, 64, 2>(ctx, p);
    return LaunchTiles<kFormat, 128, 2>(ctx, p);
  }
  if constexpr (kFormat != WeightFormat::kBf16) {
    if (tokens == 128) return LaunchTiles<kFormat, 128, 1>(ctx, p);
    if (tokens == 192) return LaunchTiles<kFormat, 192, 1>(ctx, p);
    LaunchTiles<kFormat, 256, 1>(ctx, p);
  }
}

}  // namespace

bool LinearPrefillSm90Supports(const LinearArgs& a) {
  return a.w.layout == WeightLayout::kTiles && a.w.format != WeightFormat::kF32 && IsHopper();
}

void LinearPrefillSm90(const ExecContext& ctx, const LinearArgs& a, int parts) {
  if (a.w.format == WeightFormat::kBf16) parts = 2;
  const int64_t num_tokens = a.x.dim(0), k = a.w.cols, n = a.w.rows / a.groups, slabs = CeilDiv(k, kTileCols64);
  if (num_tokens == 0) return;
  const int64_t token_bytes = a.groups * slabs * parts * 128;
  constexpr int64_t kReadyBytes = kMaxTokenTiles * 4;
  const int64_t fit =
      std::min((ctx.scratch.bytes - kReadyBytes) / token_bytes / kMaxTokens * kMaxTokens, int64_t{kMaxTokenTiles} * 64);
  DSV4_CHECK(fit > 0, "scratch of ", ctx.scratch.bytes, " bytes");
  const int64_t pieces = CeilDiv(num_tokens, fit);
  const int64_t piece = CeilDiv(CeilDiv(num_tokens, pieces), kMaxTokens) * kMaxTokens;
  for (int64_t begin = 0; begin < num_tokens; begin += piece) {
    const int64_t count = std::min(piece, num_tokens - begin), blocks8 = CeilDiv(count, 8);
    const float* x = a.x.f32() + begin * a.groups * k;
    const int64_t row_tiles = CeilDiv(n, kTileRows16) + (a.groups > 1 && n % kTileRows16 != 0 ? 1 : 0);
    const LinearParams p = {
        .conversion = {.x = x,
                       .out = ctx.scratch.data + kReadyBytes,
                       .ready = reinterpret_cast<int*>(ctx.scratch.data),
                       .num_tokens = static_cast<int>(count),
                       .row_blocks8 = static_cast<int>(blocks8),
                       .groups = static_cast<int>(a.groups),
                       .k = static_cast<int>(k),
                       .slabs = static_cast<int>(slabs),
                       .parts = parts,
                       .tile_blocks8 = 0,
                       .first_tiles = 0,
                       .aligned = k % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0},
        .codes = a.w.codes,
        .scales = reinterpret_cast<const float*>(a.w.block_scale),
        .global_scale = a.w.global_scale,
        .tokens = ctx.scratch.data + kReadyBytes,
        .y = a.y.f32() + begin * a.groups * n,
        .y_stride = a.groups * n,
        .num_tokens = static_cast<int>(count),
        .row_blocks8 = static_cast<int>(blocks8),
        .n = static_cast<int>(n),
        .groups = static_cast<int>(a.groups),
        .slabs = static_cast<int>(slabs),
        .scale_stride = static_cast<int>(CeilDiv(k, kFp8BlockSize)),
        .row_steps = static_cast<int>(CeilDiv(row_tiles, kRowTiles)),
        .token_steps = 0,
    };
    switch (a.w.format) {
      case WeightFormat::kNvfp4: LaunchFormat<WeightFormat::kNvfp4>(ctx, p); break;
      case WeightFormat::kMxfp4: LaunchFormat<WeightFormat::kMxfp4>(ctx, p); break;
      case WeightFormat::kFp8Block: LaunchFormat<WeightFormat::kFp8Block>(ctx, p); break;
      case WeightFormat::kBf16: LaunchFormat<WeightFormat::kBf16>(ctx, p); break;
      case WeightFormat::kF32: break;
    }
  }
}

}  // namespace dsv4
