// The router of one token or a few: linear and choice in one launch. Each block of a cluster has 16 experts and
// requests all their weights before the wait. The blocks send the scores of token i to block i (device/cluster.cuh),
// where one warp chooses. The products and their order are the same as in tile_linear_kernel.cuh, and the choice is
// RouterKernel's. So the bits are the same.
#include "device/active_clusters.h"
#include "device/cluster.cuh"
#include "ops/idle_row.h"
#include "ops/linear/tile/one_token.cuh"
#include "ops/router/choice.cuh"
#include "ops/router/router.h"
#include "ops/router/router_one.h"

namespace dsv4 {

namespace router {

namespace {

constexpr int kRouterOneThreads = 32 * kSegments;
constexpr int kTileBytes = static_cast<int>(TileBytes(kFormat)), kXBytes = tile_linear::kOneTokenTile;
constexpr int kEarly = 4;                    // tiles whose weights a warp has in registers before x is available
constexpr int kOctets = kMaxTiles * 8 / 32;  // of a lane: eight numbers of x each

struct OneParams {
  const uint8_t* codes;
  const float* x;
  float* logits;
  const float* bias;
  const int32_t* hash_table;
  const int32_t* tokens;
  int64_t vocabulary;
  float factor, scaling;
  int num_tokens, cols, tile_cols, num_experts, count, always;
  int32_t* experts;
  float* weights;
};

inline int TilesOfSegment(int tile_cols) { return (tile_cols + kSegments - 1) / kSegments; }
inline size_t SharedBytes(int tiles, int tokens) {
  return static_cast<size_t>(kSegments * tiles) * static_cast<size_t>(kTileBytes + tokens * kXBytes);
}

// A token's columns of x of a warp, in the form of StageOneToken; zeros if not `real`.
struct WarpColumns {
  float4 v[kOctets][2];

  __device__ __forceinline__ void Load(const float4* x, bool real, int first, int tiles, int cols, int lane) {
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      const int octet = lane + 32 * i;
      v[i][0] = v[i][1] = make_float4(0, 0, 0, 0);
      if (real && octet < 8 * tiles && 8 * (octet + 8 * first) < cols)
        v[i][0] = x[2 * octet], v[i][1] = x[2 * octet + 1];
    }
  }
  template <int kTile>
  __device__ __forceinline__ void Store(uint8_t* inputs, int tiles, int lane) const {
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      const int octet = lane + 32 * i;
      if (octet >= 8 * tiles) break;
      tile_linear::StoreOctet(inputs + octet / 8 * kTile, octet, v[i][0], v[i][1]);
    }
  }
};

// All tokens' columns of a warp, which begin at tile `first`.
template <int kTokens>
__device__ __forceinline__ void StageColumns(const OneParams& a, bool real, int num_tokens, int first, int tiles,
                                             int lane, uint8_t* inputs) {
  WarpColumns of[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const float4* const x = reinterpret_cast<const float4*>(a.x + int64_t{i} * a.cols) + 16 * first;
    of[i].Load(x, real && i < num_tokens, first, tiles, a.cols, lane);
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i)
    of[i].template Store<tile_linear::OneTokenTiles<kFormat, kTokens>::kTile>(inputs + i * kXBytes, tiles, lane);
}

// Multiplies a warp's segment with the columns at x; its first tiles' weights are already in registers.
template <typename Products>
__device__ __forceinline__ float2 MultiplySegment(Products& products, const uint32_t (&early)[kEarly][4][4],
                                                  uint32_t codes, int tiles, uint32_t x) {
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
    if (i < tiles) products.Multiply(early[i], x + static_cast<uint32_t>(i * Products::kTile), 0);
  }
#pragma unroll 2
  for (int i = kEarly; i < tiles; ++i) {
    uint32_t w[4][4];
    products.Decode(codes + static_cast<uint32_t>(i * kTileBytes), w);
    products.Multiply(w, x + static_cast<uint32_t>(i * Products::kTile), 0);
  }
  return products.Take();
}

// The score of the block's expert i in lane i of a warp, from a token's sums of the segments.
__device__ __forceinline__ float SumOfSegments(const float (&partial)[kSegments][kRows], int lane) {
  float part[kSegments];
#pragma unroll
  for (int i = 0; i < kSegments; ++i) part[i] = partial[i][lane];
  // TreeSum
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

// A warp sends the block's scores of a token to block `to`, which collects the scores of all blocks.
__device__ __forceinline__ void SendScores(const float (&block_scores)[kRows], const uint32_t (&block_keys)[kRows],
                                           int rank, int lane, float* scores, uint32_t* keys,
                                           gpu::ClusterBarrier& at_scores, int to) {
  const int quad = lane % (kRows / 4) * 4;
  const bool key = lane >= kRows / 4;
  gpu::Send(
      (key ? reinterpret_cast<float*>(keys) : scores) + kRows * rank + quad,
      key ? *reinterpret_cast<const uint4*>(block_keys + quad) : *reinterpret_cast<const uint4*>(block_scores + quad),
      at_scores, to);
}

// Decodes the weights of a warp's first tiles into registers.
template <typename Products>
__device__ __forceinline__ void DecodeEarly(const Products& products, uint32_t codes, int tiles,
                                            uint32_t (&early)[kEarly][4][4]) {
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
    if (i < tiles) products.Decode(codes + static_cast<uint32_t>(i * kTileBytes), early[i]);
  }
}

// kTokens: capacity, at least the number of tokens.
template <int kTokens>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kRouterOneThreads)
    RouteOneKernel(const __grid_constant__ OneParams a) {
  using Products = tile_linear::OneTokenTiles<kFormat, kTokens>;
  constexpr int kXTile = Products::kTile;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t full[kSegments];
  __shared__ gpu::ClusterBarrier at_scores;
  __shared__ float partial[2][kTokens][kSegments][kRows];  // by pass
  __shared__ __align__(16) float block_scores[kTokens][kRows];
  __shared__ __align__(16) uint32_t block_keys[kTokens][kRows];
  __shared__ __align__(16) float scores[kExperts];  // of all blocks, for the block's token
  __shared__ __align__(16) uint32_t keys[kExperts];
  AllowNext();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, rank = static_cast<int>(blockIdx.x);
  const int warp = __shfl_sync(0xFFFFFFFFu, thread / 32, 0);
  const int num_tokens = kTokens == 1 ? 1 : a.num_tokens;
  if (rank < num_tokens && thread == 0) {
    at_scores.Init(1);
    BarrierInitFence();
    at_scores.Expect(sizeof scores + sizeof keys);
  }
  const int first = a.tile_cols * warp / kSegments, tiles = a.tile_cols * (warp + 1) / kSegments - first;
  const int room = (a.tile_cols + kSegments - 1) / kSegments;  // tiles of a segment
  const uint32_t codes = SharedAddress(shared) + static_cast<uint32_t>(warp * room * kTileBytes);
  uint8_t* const inputs = shared + kSegments * room * kTileBytes + warp * room * kXTile;
  const uint32_t bar = SharedAddress(full + warp);
  if (ElectLane()) {
    BarrierInit(bar, 1);
    BarrierInitFence();
  }
  __syncwarp();
  ClusterArriveRelaxed();  // "I run"
  if (ElectLane()) {
    const uint32_t bytes = static_cast<uint32_t>(tiles * kTileBytes);
    BarrierExpect(bar, bytes);
    BulkLoad(codes, a.codes + (static_cast<int64_t>(rank) * a.tile_cols + first) * kTileBytes, bytes, bar, kEvictFirst);
  }
  // The block's experts: one per thread of the warp that has a token.
  const int expert = kRows * rank + lane;
  const bool has_expert = (kTokens == 1 ? warp == 0 : warp < num_tokens) && lane < kRows && expert < a.num_experts;
  const float bias = has_expert && a.hash_table == nullptr ? a.bias[expert] : 0.0f;

  Products products(static_cast<uint32_t>(lane));
  uint32_t early[kEarly][4][4];
  BarrierWait(bar, 0);
  DecodeEarly(products, codes, tiles, early);
  // Two passes: the first has no x and runs before the wait, so that the code is loaded when x is available.
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool real = pass == 1;
    if (real) {
      ClusterWait();
      WaitForPrevious();
    }
    StageColumns<kTokens>(a, real, num_tokens, first, tiles, lane, inputs);
    __syncwarp();
    const float2 sum = MultiplySegment(products, early, codes, tiles, SharedAddress(inputs));
    if (kTokens == 1 ? lane % 4 == 0 : lane % 4 < kTokens) {
      float* const to = partial[pass][kTokens == 1 ? 0 : lane % 4][warp];
      to[lane / 4] = sum.x, to[lane / 4 + 8] = sum.y;
    }
    __syncthreads();
    if (kTokens == 1 ? warp != 0 : warp >= num_tokens) continue;
    if (lane < kRows) {
      const float logit = SumOfSegments(partial[pass][warp], lane) * a.factor;
      const float score = SqrtSoftplus(logit);
      block_scores[warp][lane] = score;
      block_keys[warp][lane] = has_expert ? OrderedKey(score + bias) : 0;
      if (real && has_expert) a.logits[(kTokens == 1 ? 0 : warp * a.num_experts) + expert] = logit;
    }
    __syncwarp();
    if (real && lane < kRows / 2) {
      SendScores(block_scores[warp], block_keys[warp], rank, lane, scores, keys, at_scores, kTokens == 1 ? 0 : warp);
    }
    if (kTokens == 1 ? rank != 0 : warp != 0 || rank >= num_tokens) continue;
    const int own = kTokens == 1 ? 0 : rank;  // the token for which the block chooses
    if (real) at_scores.Wait(0);
    int mine = 0;
    if (a.hash_table == nullptr) {
      uint32_t key[kExperts / 32], my_key;
      int index[kExperts / 32];
#pragma unroll
      for (int i = 0; i < kExperts / 32; ++i)
        index[i] = 32 * i + lane, key[i] = real ? keys[index[i]] : static_cast<uint32_t>(index[i]);
      WarpLargest(key, index, a.count, my_key, mine);
    } else {
      const int64_t token = a.tokens[own], row = token < 0 || token >= a.vocabulary ? 0 : token;
      if (lane < a.count) mine = a.hash_table[row * a.count + lane];
    }
    mine = min(max(mine, 0), a.num_experts - 1);
    const float weight = WarpWeight(lane < a.count && real ? scores[mine] : 0.0f, a.count, a.scaling);
    const int slot = a.always >= 0 ? 1 : 0, to = own * (slot + a.count);
    const bool idle = kTokens > 1 && real && a.tokens != nullptr && a.tokens[own] == kIdleToken;
    if (real && slot == 1 && lane == 0) a.experts[to] = idle ? kNoExpert : a.always, a.weights[to] = idle ? 0.0f : 1.0f;
    if (real && lane < a.count) {
      a.experts[to + slot + lane] = idle ? kNoExpert : mine;
      a.weights[to + slot + lane] = idle ? 0.0f : weight;
    }
  }
}

template <int kTokens>
void LaunchRouteOne(const ExecContext& ctx, const OneParams& params) {
  DSV4_CHECK(MaxActiveClusters(ctx, reinterpret_cast<const void*>(RouteOneKernel<kTokens>), kBlocks, kBlocks,
                               kRouterOneThreads, SharedBytes(MostTiles(kTokens), kTokens)) > 0);
  Launch(ctx, RouteOneKernel<kTokens>, dim3(kBlocks), dim3(kRouterOneThreads),
         SharedBytes(TilesOfSegment(params.tile_cols), kTokens), params);
}

}  // namespace

}  // namespace router

void RouterOneCuda(const ExecContext& ctx, const RouterArgs& a) {
  using namespace router;
  OneParams params = {.codes = a.w.codes,
                      .x = a.x.f32(),
                      .logits = a.logits.f32(),
                      .bias = a.bias ? a.bias.f32() : nullptr,
                      .hash_table = a.hash_table ? a.hash_table.i32() : nullptr,
                      .tokens = a.tokens ? a.tokens.i32() : nullptr,
                      .vocabulary = a.hash_table ? a.hash_table.dim(0) : 0,
                      .factor = a.w.global_scale,
                      .scaling = a.scaling_factor,
                      .num_tokens = static_cast<int>(a.x.dim(0)),
                      .cols = static_cast<int>(a.x.dim(1)),
                      .tile_cols = static_cast<int>(CeilDiv(a.x.dim(1), kTileCols64)),
                      .num_experts = static_cast<int>(a.logits.dim(1)),
                      .count = static_cast<int>(a.experts.dim(1) - (a.always >= 0 ? 1 : 0)),
                      .always = static_cast<int>(a.always),
                      .experts = a.experts.i32(),
                      .weights = a.weights.f32()};
  DSV4_CHECK(a.w.layout == WeightLayout::kTiles && reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0);
  if (params.num_tokens == 1) return LaunchRouteOne<1>(ctx, params);
  LaunchRouteOne<tile_linear::kFewTokens>(ctx, params);
}

}  // namespace dsv4
