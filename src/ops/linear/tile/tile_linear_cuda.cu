#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "device/launch.cuh"
#include "ops/linear/linear.h"
#include "ops/linear/tile/tile_linear.cuh"

namespace dsv4 {

namespace tile_linear {

namespace {

// The division of a product. The segments, and with them a row's bits, are a function of the shapes. The slices and
// clusters, and so the threads that add, may depend on T.
struct Cut {
  int log_segments, log_slices, clusters;
};

Cut ChooseCut(const ExecContext& ctx, int tile_cols, int items, int groups, int64_t num_tokens, bool few) {
  const int sms = ctx.gpu.multiprocessors;
  Cut cut = {};
  cut.log_segments = LogSegments(ctx, tile_cols, items);
  cut.log_slices = LogSlices(ctx, tile_cols, items, num_tokens, few);
  cut.clusters = std::min({cut.log_slices == 0 ? sms : MaxClusters(ctx, 1 << cut.log_slices), items, kMaxClusters});
  if (groups > 1) cut.clusters = std::min(cut.clusters, std::max(1, cut.clusters / groups) * groups);
  return cut;
}

// Ranges that may contain several formats: equal bytes for each cluster.
void CutByBytes(Params& p, int64_t bytes) {
  int64_t before = 0;
  int cluster = 0, item = 0;
  const auto begins = [&](int at) {
    p.ranges[cluster].begin = static_cast<uint16_t>(at);
    if (cluster > 0) p.ranges[cluster - 1].end = static_cast<uint16_t>(at);
    ++cluster;
  };
  for (int i = 0; i < p.num_matrices; ++i) {
    const int end = i + 1 < p.num_matrices ? p.matrices[i + 1].first_item : p.items;
    for (; item < end; ++item, before += TileBytes(p.matrices[i].format)) {
      while (cluster < p.num_clusters && before * p.num_clusters >= bytes * cluster) begins(item);
    }
  }
  while (cluster < p.num_clusters) begins(p.items);
  p.ranges[cluster - 1].end = static_cast<uint16_t>(p.items);
  p.max_items = 0;
  for (int c = 0; c < p.num_clusters; ++c) p.max_items = std::max(p.max_items, p.ranges[c].end - p.ranges[c].begin);
}

// Ranges of one format each, of matrices sorted by format. Blocks go one by one to the format whose largest range has
// the most bytes. Ranges of few bytes come last: the last blocks begin when the previous kernel ends, the others while
// x is computed.
void CutByFormat(Params& p) {
  struct Part {
    WeightFormat format;
    int first, items, blocks;
    // The bytes of the largest range and of the average range, for 64 columns.
    std::pair<int64_t, int64_t> Load() const {
      return {CeilDiv(items, blocks) * TileBytes(format), items * TileBytes(format) / blocks};
    }
  };
  Part parts[kMaxTileLinearMatrices];
  int count = 0;
  for (int i = 0; i < p.num_matrices; ++i) {
    const Matrix& m = p.matrices[i];
    const int items = (i + 1 < p.num_matrices ? p.matrices[i + 1].first_item : p.items) - m.first_item;
    if (items == 0) continue;
    if (count == 0 || parts[count - 1].format != m.format) parts[count++] = {m.format, m.first_item, 0, 1};
    parts[count - 1].items += items;
  }
  // There are at most as many blocks as items, so a format can use another block.
  const int blocks = p.num_clusters;
  for (p.num_clusters = count; p.num_clusters < blocks; ++p.num_clusters) {
    Part* next = nullptr;
    for (Part* part = parts; part < parts + count; ++part) {
      if (part->blocks < part->items && (next == nullptr || part->Load() > next->Load())) next = part;
    }
    ++next->blocks;
  }
  struct Ranges {
    int first, count, items;
    int64_t bytes;  // of one
  };
  Ranges ranges[2 * kMaxTileLinearMatrices];
  for (int i = 0; i < count; ++i) {
    const Part& part = parts[i];
    const int items = part.items / part.blocks, more = part.items % part.blocks;
    const int64_t bytes = TileBytes(part.format);
    ranges[2 * i] = {part.first, more, items + 1, (items + 1) * bytes};
    ranges[2 * i + 1] = {part.first + more * (items + 1), part.blocks - more, items, items * bytes};
  }
  std::stable_sort(ranges, ranges + 2 * count, [](const Ranges& a, const Ranges& b) { return a.bytes > b.bytes; });
  int block = 0;
  p.max_items = 0;
  for (const Ranges* of = ranges; of < ranges + 2 * count; ++of) {
    for (int i = 0; i < of->count; ++i, ++block) {
      const int begin = of->first + i * of->items;
      p.ranges[block] = {static_cast<uint16_t>(begin), static_cast<uint16_t>(begin + of->items)};
      p.max_items = std::max(p.max_items, of->items);
    }
  }
}

// The common state of a call's launches. `format`: kMixed if matrices have several formats, or if inputs are exact.
struct Product {
  Params p = {};
  WeightFormat format;
  int inputs;         // kPair or kExact
  int64_t bytes = 0;  // of 64 columns
  int64_t push_site = kNoSite;
};

Product ProductOf(const ExecContext& ctx, const TileLinearMatrix* matrices, int count) {
  Product product{.format = matrices[0].w.format, .inputs = ctx.f32_inputs ? kExact : kPair};
  Params& p = product.p;
  p.num_matrices = count;
  p.cols = static_cast<int>(matrices[0].w.cols);
  p.tile_cols = static_cast<int>(CeilDiv(p.cols, kTileCols64));
  p.groups = static_cast<int>(matrices[0].groups);
  p.x_stride = matrices[0].groups * matrices[0].w.cols;
  p.rows_per_group = static_cast<int>(matrices[0].w.rows / p.groups);
  p.items_per_group = static_cast<int>(ItemsOf(matrices[0].w, p.groups)) / p.groups;
  for (int i = 0; i < count; ++i) {
    const QuantTensor& w = matrices[i].w;
    DSV4_CHECK(w.layout == WeightLayout::kTiles && w.cols == matrices[0].w.cols &&
               (matrices[i].groups == 1 || count == 1));
    p.matrices[i] = {.codes = w.codes,
                     .scales = reinterpret_cast<const float*>(w.block_scale),
                     .factor = w.global_scale * MmaFactor(w.format),
                     .rows = static_cast<int>(w.rows),
                     .first_item = p.items,
                     .format = w.format};
    const int here = static_cast<int>(ItemsOf(w, p.groups));
    p.items += here;
    product.bytes += here * TileBytes(w.format);
    if (w.format != product.format) product.format = kMixed;
  }
  if (product.inputs == kExact) product.format = kMixed;
  return product;
}

void CutFor(const ExecContext& ctx, int64_t tokens, bool few, Product& product) {
  Params& p = product.p;
  const Cut cut = ChooseCut(ctx, p.tile_cols, p.items, p.groups, product.inputs == kExact ? 3 * tokens : tokens, few);
  p.log_segments = cut.log_segments;
  p.log_slices = cut.log_slices;
  p.log_parts = cut.log_segments - cut.log_slices;
  p.num_clusters = cut.clusters;
  p.num_tokens = static_cast<int>(tokens);
  p.splits = std::max(1, cut.clusters / p.groups);
  p.items_each = p.items / cut.clusters;
  p.items_rest = p.items % cut.clusters;
  p.max_items = static_cast<int>(p.groups > 1 ? CeilDiv(p.items_per_group, p.splits) : CeilDiv(p.items, cut.clusters));
  if (product.format != kMixed || p.groups > 1) return;
  static_assert(kMaxRowsOnGpu / 16 <= UINT16_MAX);
  DSV4_CHECK(p.items <= UINT16_MAX, "items ", p.items);
  RangesHaveOneFormat(p) ? CutByFormat(p) : CutByBytes(p, product.bytes);
}

// Whether shared memory holds x of `tokens` tokens and a ring of weights.
bool ChooseRing(int64_t tokens, Product& product) {
  Params& p = product.p;
  for (p.slots = kSlots; p.slots >= 2; --p.slots) {
    if (SharedBytes(p, static_cast<int>(tokens), product.inputs, p.slots) <= kMostShared) return true;
  }
  return false;
}

// Divides the product for the most tokens, up to `most`, that shared memory holds.
int64_t CutForTokens(const ExecContext& ctx, int64_t most, Product& product) {
  for (int64_t tokens = std::min<int64_t>(most, product.inputs == kExact ? 8 : 32);; tokens = (tokens + 1) / 2) {
    if (product.inputs == kPair && product.format != kMixed && tokens <= kFewTokens) {
      CutFor(ctx, tokens, /*few=*/true, product);
      if (ChooseRing(tokens, product)) return tokens;
    }
    CutFor(ctx, tokens, /*few=*/false, product);
    if (ChooseRing(tokens, product)) return tokens;
    DSV4_CHECK(tokens > 1, "K ", product.p.cols);
  }
}

void LaunchProduct(const ExecContext& ctx, const Product& product) {
  if (product.inputs == kExact) return LaunchExact(ctx, product.p);
  if (product.push_site != kNoSite) {
    WithTileFormat(product.format, [&]<WeightFormat F>() { LaunchPushing<F>(ctx, product.p, product.push_site); });
    return;
  }
  if (product.format == kMixed) return LaunchFormat<kMixed>(ctx, product.p);
  WithTileFormat(product.format, [&]<WeightFormat F>() { LaunchFormat<F>(ctx, product.p); });
}

void Run(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* in, int count,
         const float* norm, float norm_eps) {
  DSV4_CHECK(count >= 1 && count <= kMaxTileLinearMatrices);
  TileLinearMatrix matrices[kMaxTileLinearMatrices];  // by format
  std::copy_n(in, count, matrices);
  std::stable_sort(matrices, matrices + count,
                   [](const TileLinearMatrix& a, const TileLinearMatrix& b) { return a.w.format < b.w.format; });
  Product product = ProductOf(ctx, matrices, count);
  Params& p = product.p;
  if (p.items == 0) return;
  p.norm = norm, p.norm_eps = norm_eps;
  product.push_site = in[0].push_site;
  for (int64_t first = 0; first < num_tokens;) {
    const int64_t tokens = CutForTokens(ctx, num_tokens - first, product);
    p.policy = tokens == num_tokens ? kEvictFirst : kEvictNormal;
    p.x = x + first * p.x_stride;
    for (int i = 0; i < count; ++i) p.matrices[i].y = matrices[i].y + first * matrices[i].w.rows;
    LaunchProduct(ctx, product);
    first += tokens;
  }
}

}  // namespace
}  // namespace tile_linear

void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count,
                const float* norm, float norm_eps) {
  tile_linear::Run(ctx, x, num_tokens, matrices, count, norm, norm_eps);
}

}  // namespace dsv4
