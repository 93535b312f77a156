#include <algorithm>
#include <map>
#include <mutex>

#include "base/check.h"
#include "device/launch.cuh"
#include "ops/linear/tile_linear.cuh"

namespace dsv4 {

namespace tile_linear {

namespace {

constexpr int64_t kInputBytes = 65536;  // of x, that one block reads and converts, before K is cut over a cluster
// y of four rows of an item's tile, from row `first` of the tile on.
__device__ __forceinline__ void WriteRows(const Params& p, const Range& range, int item, int first, int token, float4 sum) {
  const int m = MatrixOf(p, item);
  const Matrix& a = p.matrices[m];
  const int n = RowTile(p, m, range.group, item) * 16 + first, begin = range.group * p.rows_per_group;
  const int end = p.groups == 1 ? a.rows : begin + p.rows_per_group;
  float* y = a.y + static_cast<int64_t>(token) * a.rows + n;
  const float v[4] = {sum.x * a.factor, sum.y * a.factor, sum.z * a.factor, sum.w * a.factor};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (n + i >= begin && n + i < end) y[i] = v[i];
  }
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// Sum of `count` (1, 2, 4 or 8) terms as a balanced tree: cut over blocks or warps, the sum of Q segments has the same bits.
__device__ __forceinline__ float4 TreeSum(const float4* terms, int stride, int count) {
  float4 sum = terms[0];
  if (count >= 2) sum = sum + terms[stride];
  if (count >= 4) sum = sum + (terms[2 * stride] + terms[3 * stride]);
  if (count >= 8) sum = sum + ((terms[4 * stride] + terms[5 * stride]) + (terms[6 * stride] + terms[7 * stride]));
  return sum;
}

// Partial sums of a range, [part][token][row], and of what this block owns of it, [token][row quad / S][slice] float4: row
// quads go round the blocks of the cluster.
struct Exchange {
  float* partials;
  float4* received;
  uint32_t barrier;

  __host__ __device__ __forceinline__ static int Stride(int items) { return 16 * items + 4; }
  __host__ __device__ __forceinline__ static int Quads(int items, int slices) { return (4 * items + slices - 1) / slices; }
};

// All warps' partial sums of a range, which lie in shared memory, become y.
__device__ __forceinline__ void Reduce(const Params& p, const Range& range, const Exchange& e, int rank, uint32_t parity) {
  const int slices = 1 << p.log_slices, parts = 1 << p.log_parts, items = range.end - range.begin;
  const int quads = 4 * items, stride = Exchange::Stride(items) / 4, part_stride = p.num_tokens * stride;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float4* partials = reinterpret_cast<const float4*>(e.partials);
  if (slices == 1) {
    // One token: the warps share its rows.
    const int first = p.num_tokens == 1 ? static_cast<int>(threadIdx.x) : lane, step = p.num_tokens == 1 ? kThreads : 32;
    for (int token = p.num_tokens == 1 ? 0 : warp; token < p.num_tokens; token += kWarps) {
      for (int quad = first; quad < quads; quad += step) {
        WriteRows(p, range, range.begin + quad / 4, quad % 4 * 4, token, TreeSum(partials + token * stride + quad, part_stride, parts));
      }
    }
    return;
  }
  const int owned = Exchange::Quads(items, slices);
  for (int token = warp; token < p.num_tokens; token += kWarps) {
    for (int quad = lane; quad < quads; quad += 32) {
      const float4 sum = TreeSum(partials + token * stride + quad, part_stride, parts);
      const uint32_t owner = static_cast<uint32_t>(quad & (slices - 1));
      const float4* to = e.received + (token * owned + (quad >> p.log_slices)) * slices + rank;
      StoreToCluster(ClusterAddress(SharedAddress(to), owner), sum, ClusterAddress(e.barrier, owner));
    }
  }
  WaitClusterBarrier(e.barrier, parity);
  for (int token = warp; token < p.num_tokens; token += kWarps) {
    for (int i = lane; i * slices + rank < quads; i += 32) {
      const int quad = i * slices + rank;
      WriteRows(p, range, range.begin + quad / 4, quad % 4 * 4, token, TreeSum(e.received + (token * owned + i) * slices, 1, slices));
    }
  }
}

template <WeightFormat F, int NT, int NX>
__global__ void __launch_bounds__(kThreads, NT == 1 && F != kMixed ? 2 : 1) TileLinearKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kSlots + 1];
  AllowNext();
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const int slices = 1 << p.log_slices, parts = 1 << p.log_parts;
  const int rank = static_cast<int>(blockIdx.x) & (slices - 1), cluster = static_cast<int>(blockIdx.x) >> p.log_slices;
  const int part = warp & (parts - 1), segment = rank * parts + part;
  const int first_tile = p.tile_cols * rank >> p.log_slices, end_tile = p.tile_cols * (rank + 1) >> p.log_slices;
  Share share;
  share.offset = warp >> p.log_parts;
  share.step = kWarps >> p.log_parts;
  share.first = p.tile_cols * segment >> p.log_segments;
  share.count = (p.tile_cols * (segment + 1) >> p.log_segments) - share.first;
  const uint32_t ring = SharedAddress(shared) + warp * (p.slots * kSlotBytes), full = SharedAddress(barriers) + warp * (kSlots * 8);

  Range range = RangeAt<F>(p, cluster);
  TileStream<F> stream(ring, full);
  if (ElectLane()) {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) InitBarrier(full + 8 * s);
    if (warp == 0) InitBarrier(SharedAddress(barriers + kWarps * kSlots));
    FenceBarrierInit();
  }
  __syncwarp();
  stream.Start(p, range, share);
  if (slices > 1) ClusterArriveRelaxed();
  ItemScales next_scales = {};
  const auto load_scales = [&](int item) {
    if (item >= range.end) return;
    const int m = MatrixOf(p, item);
    if (F == kMixed && p.matrices[m].format != WeightFormat::kFp8Block) return;
    next_scales = ItemScales::Load(p, m, RowTile(p, m, range.group, item), share.first, lane);
  };
  if constexpr (F == WeightFormat::kFp8Block || F == kMixed) load_scales(range.begin + share.offset);
 WaitForPrevious();

  uint8_t* const inputs = shared + kWarps * p.slots * kSlotBytes;
  const Inputs<NT, NX> tokens(p.num_tokens, lane);
  const uint8_t* const warp_inputs = inputs + (share.first - first_tile) * tokens.tile();
  Exchange exchange;
  exchange.partials = reinterpret_cast<float*>(inputs + ((p.tile_cols + slices - 1) >> p.log_slices) * tokens.tile());
  exchange.barrier = SharedAddress(barriers + kWarps * kSlots);
  const bool direct = p.log_segments == 0;
  const int num_ranges = p.groups == 1 ? p.num_clusters : p.groups * p.splits;
  uint32_t parity = 0, phase = 0;
  int slot = 0;
  uint4 b[2][2] = {};
  for (int i = cluster; i < num_ranges; i += p.num_clusters) {
    if (i != cluster) {  // only groups that outnumber the clusters
      __syncthreads();
      range = RangeAt<F>(p, i);
      slot = 0, phase = 0;
      if (ElectLane()) {  // the ring starts anew
        for (int s = 0; s < kSlots; ++s) {
          asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(full + 8 * s) : "memory");
          InitBarrier(full + 8 * s);
        }
        FenceBarrierInit();
      }
      __syncwarp();
      stream.Start(p, range, share);
      if constexpr (F == WeightFormat::kFp8Block || F == kMixed) load_scales(range.begin + share.offset);
    }
    const int items = range.end - range.begin, stride = Exchange::Stride(items);
    StageInputs<NX>(p, range.group, first_tile * 64, end_tile - first_tile, inputs);
    if (slices > 1 && threadIdx.x == 0) {
      ExpectBytes(exchange.barrier, static_cast<uint32_t>(p.num_tokens * ((4 * items - rank + slices - 1) >> p.log_slices) * slices) * 16);
    }
    __syncthreads();
    for (int item = range.begin + share.offset; item < range.end; item += share.step) {
      float acc[2][NT][4];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[0][n][j] = acc[1][n][j] = 0;
      }
      const ItemScales scales = next_scales;
      if constexpr (F == WeightFormat::kFp8Block || F == kMixed) load_scales(item + share.step);
      const int m = MatrixOf(p, item);
      const Matrix& a = p.matrices[m];
      const WeightFormat format = F == kMixed ? a.format : F;
      const uint8_t* x = warp_inputs;
      int left = share.count, scale_tile = share.first & 1;
#pragma unroll 1
      do {
        const int count = min(TilesOfChunk(format), left);
        WaitBarrier(full + 8 * slot, phase);
        const uint8_t* tile = shared + (warp * p.slots + slot) * kSlotBytes;
        const auto multiply = [&]<WeightFormat G>() { MultiplyChunk<G, NT, NX>(tile, count, lane, x, tokens, scales, scale_tile, b, acc); };
        if constexpr (F != kMixed) {
          multiply.template operator()<F>();
        } else {
          switch (format) {
            case WeightFormat::kNvfp4: multiply.template operator()<WeightFormat::kNvfp4>(); break;
            case WeightFormat::kMxfp4: multiply.template operator()<WeightFormat::kMxfp4>(); break;
            case WeightFormat::kFp8Block: multiply.template operator()<WeightFormat::kFp8Block>(); break;
            default: multiply.template operator()<WeightFormat::kBf16>(); break;
          }
        }
        x += count * tokens.tile();
        scale_tile += count;
        left -= count;
        __syncwarp();
        stream.Fetch(p, range, share, slot);
        if (++slot == p.slots) slot = 0, phase ^= 1;
      } while (left > 0);
      // Rows g and g + 8, tokens 8 n + 2 t + {0, 1}.
      using X = Inputs<NT, NX>;
      float sum[X::kTokenTiles][4];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[0][n][j] += acc[1][n][j];
      }
      X::Join(acc[0], sum);
      const int row = lane / 4, n = direct ? RowTile(p, m, range.group, item) * 16 + row : (item - range.begin) * 16 + row;
      const int begin = direct ? range.group * p.rows_per_group : 0;
      const int end = !direct ? n + 16 : p.groups == 1 ? a.rows : begin + p.rows_per_group;
      const float factor = direct ? a.factor : 1.0f;
      float* const to = direct ? a.y : exchange.partials + part * p.num_tokens * stride;
      const int64_t token_stride = direct ? a.rows : stride;
#pragma unroll
      for (int j = 0; j < 2 * X::kTokenTiles; ++j) {
        const int token = j / 2 * 8 + lane % 4 * 2 + j % 2;
        if (token >= p.num_tokens) continue;  // NT = 1: the lanes of the second parts have none
        float* y = to + token * token_stride + n;
        if (n >= begin && n < end) y[0] = sum[j / 2][j % 2] * factor;
        if (n + 8 >= begin && n + 8 < end) y[8] = sum[j / 2][2 + j % 2] * factor;
      }
    }
    if (direct) continue;
    __syncthreads();
    if (slices > 1 && i == cluster) ClusterWait();  // the others have begun: their memory may be written
    exchange.received = reinterpret_cast<float4*>(exchange.partials + parts * p.num_tokens * Exchange::Stride(p.max_items)) +
                        parity * (p.num_tokens * Exchange::Quads(p.max_items, slices) * slices);
   Reduce(p, range, exchange, rank, parity);
    parity ^= 1;
  }
}

// How a product is cut. Segments, and with them the bits of a row, are a function of the shapes; slices, clusters and so who
// sums what may depend on T.
struct Cut {
  int log_segments, log_slices, clusters;
};

int MaxClusters(int slices);

Cut ChooseCut(int tile_cols, int items, int groups, int64_t num_tokens) {
  const int sms = NumSms();
  Cut cut = {};
  const bool direct = items >= 8 * sms && tile_cols <= 128;  // every warp has row tiles of its own
  while (!direct && cut.log_segments < 3 && tile_cols >> (cut.log_segments + 1) >= 1) ++cut.log_segments;
  while (cut.log_slices < cut.log_segments && std::min<int64_t>(num_tokens, 32) * tile_cols * 256 >> cut.log_slices > kInputBytes) ++cut.log_slices;
  cut.clusters = std::min({cut.log_slices == 0 ? sms : MaxClusters(1 << cut.log_slices), items, kMaxClusters});
  if (groups > 1) cut.clusters = std::min(cut.clusters, std::max(1, cut.clusters / groups) * groups);
  return cut;
}

size_t SharedBytes(const Params& p, int num_tokens, int nx) {
  const int slices = 1 << p.log_slices;
  size_t bytes = static_cast<size_t>(kWarps * p.slots * kSlotBytes) + static_cast<size_t>(CeilDiv(p.tile_cols, slices) * num_tokens) * 128 * static_cast<size_t>(nx);
  if (p.log_segments > 0) bytes += static_cast<size_t>((num_tokens << p.log_parts) * Exchange::Stride(p.max_items)) * 4;
  if (p.log_slices > 0) bytes += 2 * static_cast<size_t>(num_tokens * slices * Exchange::Quads(p.max_items, slices)) * 16;
  return bytes;
}

// Clusters of `slices` blocks that run at once: a cluster lies in one GPC, and GPCs have different numbers of multiprocessors.
int MaxClusters(int slices) {
  static std::mutex mutex;
  static std::map<int, int> known;
  const std::lock_guard lock(mutex);
  int& count = known[slices];
  if (count == 0) {
    const auto kernel = TileLinearKernel<WeightFormat::kNvfp4, 1, kPair>;
    constexpr int kOnePerMultiprocessor = 160 * 1024;
    EnsureSharedMemory(reinterpret_cast<const void*>(kernel), kOnePerMultiprocessor);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(slices), 1, 1};
    cudaLaunchConfig_t config = {};
    config.attrs = &attribute;
    config.numAttrs = 1;
    config.gridDim = dim3(static_cast<unsigned>(NumSms() / slices * slices));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kOnePerMultiprocessor;
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess || count < 1) count = std::max(1, NumSms() / (2 * slices));
  }
  return count;
}

template <WeightFormat F, int NT, int NX>
void LaunchTileLinear(const ExecContext& ctx, const Params& p) {
  const auto kernel = TileLinearKernel<F, NT, NX>;
  const size_t shared_bytes = SharedBytes(p, p.num_tokens, NX);
  EnsureSharedMemory(reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.attrs = attributes;
  if (ctx.overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (p.log_slices > 0) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {1u << p.log_slices, 1, 1};
    ++config.numAttrs;
  }
  config.gridDim = dim3(static_cast<unsigned>(p.num_clusters << p.log_slices));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = StreamOf(ctx);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, p);
  if (error != cudaSuccess) NoteCudaError(error, "linear");
}

template <WeightFormat F>
void LaunchFormat(const ExecContext& ctx, const Params& p) {
  if (p.num_tokens <= 4) return LaunchTileLinear<F, 1, kPair>(ctx, p);
  if (p.num_tokens <= 8) return LaunchTileLinear<F, 2, kPair>(ctx, p);
  if (p.num_tokens <= 16) return LaunchTileLinear<F, 4, kPair>(ctx, p);
  LaunchTileLinear<F, 8, kPair>(ctx, p);
}

float TileFactor(WeightFormat f) { return f == WeightFormat::kNvfp4 ? kTileFactor<WeightFormat::kNvfp4> : 1.0f; }

void Run(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count) {
  DSV4_CHECK(count >= 1 && count <= kMaxTileLinearMatrices);
  Params p = {};
  p.num_matrices = count;
  p.cols = static_cast<int>(matrices[0].w.cols);
  p.tile_cols = static_cast<int>(CeilDiv(p.cols, kTileCols64));
  p.groups = static_cast<int>(matrices[0].groups);
  p.x_stride = matrices[0].groups * matrices[0].w.cols;
  p.rows_per_group = static_cast<int>(matrices[0].w.rows / p.groups);
  p.items_per_group = static_cast<int>(CeilDiv(p.rows_per_group, 16)) + (p.groups > 1 && p.rows_per_group % 16 != 0 ? 1 : 0);
  int64_t bytes = 0;
  WeightFormat format = matrices[0].w.format;
  for (int i = 0; i < count; ++i) {
    const QuantTensor& w = matrices[i].w;
    DSV4_CHECK(w.layout == WeightLayout::kTiles && w.cols == matrices[0].w.cols && (matrices[i].groups == 1 || count == 1));
    p.matrices[i] = {.codes = w.codes,
                     .scales = reinterpret_cast<const float*>(w.block_scale),
                     .factor = w.global_scale * TileFactor(w.format),
                     .rows = static_cast<int>(w.rows),
                     .first_item = p.items,
                     .format = w.format};
    const int here = p.groups > 1 ? p.groups * p.items_per_group : static_cast<int>(CeilDiv(w.rows, 16));
    p.items += here;
    bytes += here * TileBytes(w.format);
    if (w.format != format) format = kMixed;
  }
  if (p.items == 0 || num_tokens == 0) return;
  const int nx = ctx.f32_inputs ? kExact : kPair;
  if (nx == kExact) format = kMixed;

  const auto cut_for = [&](int64_t tokens) {
    const Cut cut = ChooseCut(p.tile_cols, p.items, p.groups, nx == kExact ? 3 * tokens : tokens);
    p.log_segments = cut.log_segments;
    p.log_slices = cut.log_slices;
    p.log_parts = cut.log_segments - cut.log_slices;
    p.num_clusters = cut.clusters;
    p.splits = std::max(1, cut.clusters / p.groups);
    p.items_each = p.items / cut.clusters;
    p.items_rest = p.items % cut.clusters;
    p.max_items = static_cast<int>(p.groups > 1 ? CeilDiv(p.items_per_group, p.splits) : CeilDiv(p.items, cut.clusters));
    if (format != kMixed || p.groups > 1) return;
    int64_t before = 0;
    int cluster = 0, item = 0;
    p.max_items = 0;
    for (int i = 0; i < count; ++i) {
      const int end = i + 1 < count ? p.matrices[i + 1].first_item : p.items;
      for (; item < end; ++item, before += TileBytes(p.matrices[i].format)) {
        while (cluster < cut.clusters && before * cut.clusters >= bytes * cluster) p.first_item[cluster++] = item;
      }
    }
    while (cluster <= cut.clusters) p.first_item[cluster++] = p.items;
    for (int c = 0; c < cut.clusters; ++c) p.max_items = std::max(p.max_items, p.first_item[c + 1] - p.first_item[c]);
  };

  for (int64_t first = 0; first < num_tokens;) {
    int64_t tokens = std::min<int64_t>(num_tokens - first, nx == kExact ? 8 : 32);
    const auto fits = [&] {
      cut_for(tokens);
      for (p.slots = kSlots; p.slots >= 2; --p.slots) {
        if (SharedBytes(p, static_cast<int>(tokens), nx) <= 227 * 1024) return true;
      }
      return false;
    };
    while (!fits()) {
      DSV4_CHECK(tokens > 1, "K ", p.cols);
      tokens = (tokens + 1) / 2;
    }
    p.num_tokens = static_cast<int>(tokens);
    p.x = x + first * p.x_stride;
    for (int i = 0; i < count; ++i) p.matrices[i].y = matrices[i].y + first * matrices[i].w.rows;
    if (nx == kExact) {
      LaunchTileLinear<kMixed, 1, kExact>(ctx, p);
    } else {
      switch (format) {
        case WeightFormat::kNvfp4: LaunchFormat<WeightFormat::kNvfp4>(ctx, p); break;
        case WeightFormat::kMxfp4: LaunchFormat<WeightFormat::kMxfp4>(ctx, p); break;
        case WeightFormat::kFp8Block: LaunchFormat<WeightFormat::kFp8Block>(ctx, p); break;
        case WeightFormat::kBf16: LaunchFormat<WeightFormat::kBf16>(ctx, p); break;
        case kMixed: LaunchFormat<kMixed>(ctx, p); break;
      }
    }
    first += tokens;
  }
}

}  // namespace
}  // namespace tile_linear

void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count) {
  tile_linear::Run(ctx, x, num_tokens, matrices, count);
}

}  // namespace dsv4
