#include "ops/linear/wgmma/wgmma_linear.h"

#include <algorithm>

#include "device/launch.cuh"
#include "ops/gemm_sm90.cuh"
#include "ops/linear/wgmma/wgmma_outputs_sm90.cuh"

namespace dsv4 {

namespace {

using namespace sm90;  // NOLINT: this file is sm90

// Activations are converted while the product runs, if that is faster. ConvertKernel converts the first token tiles;
// two warps of each of the product's blocks convert the rest, tile by tile. ready[tile] counts the warps that have
// finished the tile.
struct Conversion {
  const float* x;  // [T, groups * k]
  uint8_t* out;    // in blocks: block column c of group g has number g * slabs + c
  int* ready;
  int num_tokens, row_blocks8, groups, k, slabs, parts;
  int tile_blocks8;  // rows of a token tile / 8
  int first_tiles;   // by ConvertKernel
  bool aligned;
};
constexpr int kMaxTokenTiles = 1024;

struct LinearParams {
  Conversion conversion;
  const uint8_t* tokens;  // activations in blocks
  uint8_t* y_blocks;      // kBlocks: y as FP16 in blocks
  uint8_t* query_blocks;  // kQueries: as in query_blocks.h
  float* squares;
  const float2* cos_sin;
  int head_blocks;  // blocks of 64 channels per head; RoPE turns the last one
  GemmMatrix matrices[kMaxLinearParts];
  int count;
  int num_tokens, row_blocks8;  // rows of activations / 8
  int groups, slabs, scale_stride;
  int row_steps, token_steps;  // tiles of a group
};

struct LinearTile {
  int matrix, group, token0, row_tile0, row_tile_end;  // row tiles of the whole matrix
  // `turned`: RoPE turns the last rows of a head, which takes longer. A block's tiles are one grid size apart, so row
  // steps shift by one from one token step to the next. Otherwise some blocks would have only such tiles, and the
  // others would wait for them.
  __device__ __forceinline__ LinearTile(const LinearParams& p, int tile, int tile_tokens, bool turned) {
    const int token_step = tile / p.row_steps / p.groups, row_step = (tile + (turned ? token_step : 0)) % p.row_steps;
    group = tile / p.row_steps % p.groups;
    token0 = token_step * tile_tokens;
    matrix = 0;
    while (matrix + 1 < p.count && row_step >= p.matrices[matrix + 1].first_step) ++matrix;
    const int n = p.matrices[matrix].n;
    row_tile0 = group * n / 16 + (row_step - p.matrices[matrix].first_step) * kRowTiles;
    row_tile_end = ((group + 1) * n + 15) / 16;
  }
};

struct BlockSource {
  const float* x;
  int columns;
};

// Row lane / 4 of block `column` (counted without terms) of rows 8 block8 ..; x is null outside.
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

// A warp converts blocks begin, begin + stride, ... of `num_tiles` token tiles, two at a time.
template <bool kHalf>
__device__ __forceinline__ void ConvertTiles(const Conversion& c, int tile, int num_tiles, int begin, int stride) {
  const int block8 = tile * c.tile_blocks8, columns = c.groups * c.slabs;
  const int count = min(num_tiles * c.tile_blocks8, c.row_blocks8 - block8) * columns;
  for (int i = begin; i < count; i += 2 * stride) {
    const int row[2] = {block8 + i / columns, block8 + (i + stride) / columns};
    const int column[2] = {i % columns, (i + stride) % columns};
    BlockValues values[2];
    values[0].Load(SourceOf(c, row[0], column[0]).x, SourceOf(c, row[0], column[0]).columns, c.aligned);
    if (i + stride < count)
      values[1].Load(SourceOf(c, row[1], column[1]).x, SourceOf(c, row[1], column[1]).columns, c.aligned);
    StoreBlocks<kHalf>(c, row[0], column[0], values[0]);
    if (i + stride < count) StoreBlocks<kHalf>(c, row[1], column[1], values[1]);
  }
}

[[maybe_unused]] constexpr int kFewSlabs = 32;  // then storing the sums is a large part of a tile

enum class Output { kFloats, kBlocks, kQueries };

// One thread copies the activations of a block's tiles. It waits for the activations that other warps convert.
template <int kN, int kParts, Output kOutput>
__device__ __forceinline__ void CopyAllTokens(const GemmShared& s, const LinearParams& p, int num_tiles) {
  Ring<TokenStages(kN, kParts)> ring;
  for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles; tile += static_cast<int>(gridDim.x)) {
    const LinearTile at(p, tile, kN, kOutput == Output::kQueries);
    const int token_tile = at.token0 / kN;
    if (token_tile >= p.conversion.first_tiles) {
      WaitForCount(p.conversion.ready + token_tile, 2 * static_cast<int>(gridDim.x));
    }
    const int block = at.token0 / 8, blocks = min(kN / 8, p.row_blocks8 - block);
    const uint8_t* tokens = p.tokens +
                            (static_cast<int64_t>(at.group) * p.slabs * kParts * p.row_blocks8 + block) * 1024;
    CopyTokens<kParts, TokenStageBytes(kN, kParts)>(s, ring, tokens, static_cast<uint32_t>(blocks) * 1024,
                                                    int64_t{1024} * p.row_blocks8, p.slabs);
  }
}

template <WeightFormat kFormat, int kN, int kParts, Output kOutput>
__global__ void __launch_bounds__(kGemmThreads, 1) LinearKernel(const __grid_constant__ LinearParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t memory[];
  const GemmShared s = CarveShared<kFormat, kN, kParts>(memory);
  AllowNext();
  InitBarriers(s);
  const int num_tiles = p.row_steps * p.groups * p.token_steps, first_tile = static_cast<int>(blockIdx.x),
            stride = static_cast<int>(gridDim.x);
  const int warpgroup = static_cast<int>(threadIdx.x / 128), warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (warpgroup == 0) {
    FewerRegisters<56>();
    if (warp == 0) {  // weights: no kernel writes them, so this warp does not wait
      Ring<> ring;
      for (int tile = first_tile; tile < num_tiles; tile += stride) {
        const LinearTile at(p, tile, kN, kOutput == Output::kQueries);
        const int row_tile = at.row_tile0 + lane;
        const uint8_t* codes = p.matrices[at.matrix].codes;
        codes = row_tile < at.row_tile_end ? codes + static_cast<int64_t>(row_tile) * p.slabs * TileBytes(kFormat)
                                           : nullptr;
        CopyWeights<kFormat>(s, ring, codes, p.slabs);
      }
      return;
    }
    WaitForPrevious();
    if (warp == 1) {
      if (lane == 0) CopyAllTokens<kN, kParts, kOutput>(s, p, num_tiles);
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
    Position<TokenStages(kN, kParts)> position;
    for (int tile = first_tile; tile < num_tiles; tile += stride) {
      const LinearTile at(p, tile, kN, kOutput == Output::kQueries);
      const GemmMatrix& m = p.matrices[at.matrix];
      const int row_tile = at.row_tile0 + tile_of_block;
      Fp8Scales scales;
      if (HasScalesBeside(kFormat) && row_tile < at.row_tile_end) {
        scales.row[0] = scales.row[1] = m.scales + static_cast<int64_t>(row_tile) * p.scale_stride;
      }
      float acc[kN / 2], unit[2];
      MultiplyTile<kFormat, kN, kParts, false>(s, position, rows, scales, p.slabs, acc, unit);
      const float scale = m.factor * FormatScale<kFormat>();
      if constexpr (kOutput == Output::kBlocks) {
        const int64_t block = static_cast<int64_t>((at.row_tile0 + 4 * (warpgroup - 1)) / 4) * p.row_blocks8 +
                              at.token0 / 8;
        const int blocks = at.row_tile0 + 4 * (warpgroup - 1) < at.row_tile_end ? p.row_blocks8 - at.token0 / 8 : 0;
        StoreBlocksOfSums<kN>(s, acc, {unit[0] * scale, unit[1] * scale}, p.y_blocks + block * 1024, blocks,
                              tile + stride >= num_tiles);
      } else if constexpr (kOutput == Output::kQueries) {
        // blocks of 64 channels
        const int column = (at.row_tile0 + 4 * (warpgroup - 1)) / 4, columns = at.row_tile_end / 4;
        const bool turned = column % p.head_blocks == p.head_blocks - 1;
        StoreQueries<kN>(
            s, acc, {unit[0] * scale, unit[1] * scale},
            {.blocks = p.query_blocks + (static_cast<int64_t>(column) * p.row_blocks8 + at.token0 / 8) * 1024,
             .squares = p.squares + static_cast<int64_t>(at.token0) * columns + column,
             .squares_stride = columns,
             .cos_sin = turned && column < columns ? p.cos_sin + static_cast<int64_t>(at.token0) * 32 : nullptr,
             .num_tokens = column < columns ? p.num_tokens - at.token0 : 0},
            tile + stride >= num_tiles);
      } else {
        const int row = row_tile * 16 - at.group * m.n;  // negative if a group does not begin at a tile
        float* y = m.y + static_cast<int64_t>(at.token0) * m.y_stride + at.group * m.n + row;
        if (p.slabs <= kFewSlabs && row >= 0 && row + 16 <= m.n && at.token0 + kN <= p.num_tokens) {
          StoreAllSums<kN>(acc, {unit[0] * scale, unit[1] * scale}, y, m.y_stride);
        } else {
          const int64_t y_stride = m.y_stride;
          StoreSums<kN>(acc, {unit[0] * scale, unit[1] * scale}, p.num_tokens - at.token0, -row, m.n - row,
                        [&](int, int token) { return y + token * y_stride; });
        }
      }
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
  ConvertTiles<kHalf>(c, 0, c.first_tiles, static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32),
                      static_cast<int>(gridDim.x) * 8);
}

// The conversion of the activations: none; by a kernel before the product; partly by the product's blocks.
enum class Convert { kNo, kFirst, kMeanwhile };

template <WeightFormat kFormat, int kN, int kParts, Output kOutput = Output::kFloats>
void LaunchTiles(const ExecContext& ctx, LinearParams p, Convert convert) {
  p.token_steps = static_cast<int>(CeilDiv(p.num_tokens, kN));
  const int tiles_of_step = p.row_steps * p.groups, tiles = tiles_of_step * p.token_steps,
            grid = std::min(tiles, ctx.gpu.multiprocessors);
  p.conversion.tile_blocks8 = kN / 8;
  // The converting warps keep up if many rows use a tile's activations. On an H200 overlapping was 6 to 9 % faster at
  // 56 row steps, 6 % slower at 33, and a third slower below 16. The activations of the first round are always
  // converted before.
  constexpr int kOverlapRowSteps = 48;
  p.conversion.first_tiles = convert == Convert::kMeanwhile && p.row_steps >= kOverlapRowSteps
                                 ? std::min(static_cast<int>(CeilDiv(grid, tiles_of_step)), p.token_steps)
                                 : p.token_steps;
  if (convert != Convert::kNo) {
    Launch(ctx, ConvertKernel<kHalf<kFormat>>, dim3(static_cast<unsigned>(ctx.gpu.multiprocessors * 8)), dim3(256), 0,
           p.conversion);
  }
  Launch(ctx, LinearKernel<kFormat, kN, kParts, kOutput>, dim3(static_cast<unsigned>(grid)), dim3(kGemmThreads),
         static_cast<size_t>(GemmSharedBytes(kFormat, kN, kParts)), p);
}

// The tokens of a tile: the width with the least cost (rounds of the whole GPU x width); of nearly equal ones the
// widest.
int TileTokens(const ExecContext& ctx, const LinearParams& p) {
  int best = p.conversion.parts == 1 ? 256 : 128;
  double best_cost = 1e30;
  for (const int n : {256, 192, 128, 64}) {
    if (p.conversion.parts == 1 ? n < 128 : n > 128) continue;  // many tokens; two terms share a stage
    const int64_t tiles = p.row_steps * p.groups * CeilDiv(p.num_tokens, n);
    const double cost = static_cast<double>(CeilDiv(tiles, ctx.gpu.multiprocessors)) * (n + 24);
    if (cost < best_cost * 0.97) best = n, best_cost = cost;
  }
  return best;
}

template <WeightFormat kFormat>
void LaunchFormat(const ExecContext& ctx, const LinearParams& p, Convert convert) {
  if constexpr (kHalf<kFormat>) {
    if (p.y_blocks != nullptr) return LaunchTiles<kFormat, 256, 1, Output::kBlocks>(ctx, p, convert);
    if (p.query_blocks != nullptr) return LaunchTiles<kFormat, 256, 1, Output::kQueries>(ctx, p, convert);
  }
  const int tokens = TileTokens(ctx, p);
  if (p.conversion.parts == 2) {
    if (tokens == 64) return LaunchTiles<kFormat, 64, 2>(ctx, p, convert);
    return LaunchTiles<kFormat, 128, 2>(ctx, p, convert);
  }
  if constexpr (!NeedsTwoParts(kFormat)) {
    if (tokens == 128) return LaunchTiles<kFormat, 128, 1>(ctx, p, convert);
    if (tokens == 192) return LaunchTiles<kFormat, 192, 1>(ctx, p, convert);
    LaunchTiles<kFormat, 256, 1>(ctx, p, convert);
  }
}

// The matrices of one launch, of one format. A matrix of queries has its own launch (`queries` is its index, else -1).
struct Together {
  WeightFormat format;
  int queries;
  bool operator==(const Together&) const = default;
};
Together TogetherOf(const LinearArgs& a, int part) {
  return {a.parts[part].w.format, a.parts[part].queries.blocks != nullptr ? part : -1};
}

constexpr int64_t kReadyBytes = kMaxTokenTiles * 4;

// Matrices whose inputs have the same terms, converted once for all of them.
struct InputKind {
  int numbers;  // terms of an input
  bool given;   // as LinearArgs::x_blocks
  Together launches[kMaxLinearParts];
  int num_launches = 0;
};

// Returns the kind of matrix `lead`. Adds the later matrices of this kind that are not `done`, and marks all of them.
InputKind TakeKind(const ExecContext& ctx, const LinearArgs& a, int lead, bool (&done)[kMaxLinearParts]) {
  const bool half = IsHalf(a.parts[lead].w.format);
  InputKind kind{.numbers = GpuInputNumbers(ctx, a.parts[lead].w), .given = false, .launches = {}};
  kind.given = a.x_blocks != nullptr && half && kind.numbers == 1;
  for (int i = lead; i < a.parts.size(); ++i) {
    const QuantTensor& w = a.parts[i].w;
    if (done[i] || IsHalf(w.format) != half || GpuInputNumbers(ctx, w) != kind.numbers) continue;
    done[i] = true;
    Together* const end = kind.launches + kind.num_launches;
    if (std::find(kind.launches, end, TogetherOf(a, i)) == end) kind.launches[kind.num_launches++] = TogetherOf(a, i);
  }
  return kind;
}

// The number of tokens that are multiplied at once: all, or the number whose converted inputs fit in the scratch
// memory.
int64_t PieceTokens(const ExecContext& ctx, const LinearArgs& a, const InputKind& kind) {
  const int64_t num_tokens = a.x.dim(0), slabs = CeilDiv(a.x.dim(1) / a.groups, kTileCols64);
  const int64_t token_bytes = a.groups * slabs * kind.numbers * 128;
  const int64_t fit = std::min((ctx.scratch.bytes - kReadyBytes) / token_bytes / kMaxTokens * kMaxTokens,
                               int64_t{kMaxTokenTiles} * 64);
  DSV4_CHECK(fit > 0, "scratch of ", ctx.scratch.bytes, " bytes");
  const int64_t pieces = kind.given ? 1 : CeilDiv(num_tokens, fit);
  return CeilDiv(CeilDiv(num_tokens, pieces), kMaxTokens) * kMaxTokens;
}

// The parameters for tokens [begin, begin + count), without matrices.
LinearParams ParamsOf(const ExecContext& ctx, const LinearArgs& a, const InputKind& kind, int64_t begin,
                      int64_t count) {
  const int64_t k = a.x.dim(1) / a.groups, slabs = CeilDiv(k, kTileCols64);
  const float* x = a.x.f32() + begin * a.groups * k;
  LinearParams p = {};
  p.num_tokens = static_cast<int>(count);
  p.row_blocks8 = static_cast<int>(CeilDiv(count, 8));
  p.groups = static_cast<int>(a.groups);
  p.slabs = static_cast<int>(slabs);
  p.scale_stride = static_cast<int>(CeilDiv(k, kFp8BlockSize));
  p.conversion = {.x = x,
                  .out = ctx.scratch.data + kReadyBytes,
                  .ready = reinterpret_cast<int*>(ctx.scratch.data),
                  .num_tokens = p.num_tokens,
                  .row_blocks8 = p.row_blocks8,
                  .groups = p.groups,
                  .k = static_cast<int>(k),
                  .slabs = p.slabs,
                  .parts = kind.numbers,
                  .tile_blocks8 = 0,
                  .first_tiles = 0,
                  .aligned = k % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0};
  p.tokens = kind.given ? a.x_blocks : p.conversion.out;
  p.y_blocks = a.parts.size() == 1 ? a.parts.only().y_blocks : nullptr;
  return p;
}

void SetMatrices(const LinearArgs& a, const Together& launch, int64_t begin, LinearParams& p) {
  p.count = 0;
  int64_t steps = 0;
  for (int i = 0; i < a.parts.size(); ++i) {
    if (!(TogetherOf(a, i) == launch)) continue;
    const QuantTensor& w = a.parts[i].w;
    const bool queries = launch.queries == i;
    const int64_t n = w.rows / a.groups,
                  row_tiles = CeilDiv(n, kTileRows16) + (a.groups > 1 && n % kTileRows16 != 0 ? 1 : 0);
    p.matrices[p.count++] = {.codes = w.codes,
                             .scales = reinterpret_cast<const float*>(w.block_scale),
                             .y = p.y_blocks != nullptr || queries ? nullptr : a.parts[i].y.f32() + begin * w.rows,
                             .factor = queries ? w.global_scale * a.parts[i].queries.unit : w.global_scale,
                             .n = static_cast<int>(n),
                             .y_stride = static_cast<int>(w.rows),
                             .first_step = static_cast<int>(steps)};
    steps += CeilDiv(row_tiles, kRowTiles);
  }
  p.row_steps = static_cast<int>(steps);
}

void SetQueries(const LinearArgs& a, const Together& launch, LinearParams& p) {
  p.query_blocks = nullptr;
  if (launch.queries < 0) return;
  const LinearPart& part = a.parts[launch.queries];
  const QueryBlocks& q = part.queries;
  DSV4_CHECK(p.num_tokens == a.x.dim(0) && p.conversion.parts == 1 && IsHalf(part.w.format) && a.groups == 1 &&
             q.head_dim % 64 == 0 && part.w.rows % q.head_dim == 0);
  DSV4_CHECK(q.cos_sin.dim(0) == a.x.dim(0) && q.cos_sin.dim(1) == 32);
  p.query_blocks = q.blocks, p.squares = q.squares, p.cos_sin = reinterpret_cast<const float2*>(q.cos_sin.f32());
  p.head_blocks = static_cast<int>(q.head_dim / 64);
}

}  // namespace

void WgmmaLinear(const ExecContext& ctx, const LinearArgs& a) {
  const int64_t num_tokens = a.x.dim(0);
  if (num_tokens == 0) return;
  for (const LinearPart& part : a.parts) DSV4_CHECK(part.w.layout == WeightLayout::kTiles);
  bool done[kMaxLinearParts] = {};
  for (int lead = 0; lead < a.parts.size(); ++lead) {
    if (done[lead]) continue;
    const InputKind kind = TakeKind(ctx, a, lead, done);
    const int64_t piece = PieceTokens(ctx, a, kind);
    for (int64_t begin = 0; begin < num_tokens; begin += piece) {
      LinearParams p = ParamsOf(ctx, a, kind, begin, std::min(piece, num_tokens - begin));
      DSV4_CHECK(p.y_blocks == nullptr || p.num_tokens == num_tokens);
      for (int i = 0; i < kind.num_launches; ++i) {
        SetMatrices(a, kind.launches[i], begin, p);
        SetQueries(a, kind.launches[i], p);
        const Convert convert = kind.given || i > 0     ? Convert::kNo
                                : kind.num_launches > 1 ? Convert::kFirst
                                                        : Convert::kMeanwhile;
        WithTileFormat(kind.launches[i].format, [&]<WeightFormat F>() { LaunchFormat<F>(ctx, p, convert); });
      }
    }
  }
}

}  // namespace dsv4
