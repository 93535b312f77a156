#include <algorithm>

#include "base/check.h"
#include "device/launch.cuh"
#include "ops/linear/tile_linear.cuh"

namespace dsv4 {

namespace tile_linear {

namespace {

constexpr int64_t kInputBytes = 65536;  // of x, that one block reads and converts, before K is cut over a cluster

// How a product is cut. Segments, and with them the bits of a row, are a function of the shapes; slices, clusters and so who
// sums what may depend on T.
struct Cut {
  int log_segments, log_slices, clusters;
};

Cut ChooseCut(int tile_cols, int items, int groups, int64_t num_tokens) {
  const int sms = NumSms();
  Cut cut = {};
  const bool direct = IsDirect(tile_cols, items);
  while (!direct && cut.log_segments < 3 && tile_cols >> (cut.log_segments + 1) >= 1) ++cut.log_segments;
  while (cut.log_slices < cut.log_segments && std::min<int64_t>(num_tokens, 32) * tile_cols * 256 >> cut.log_slices > kInputBytes) ++cut.log_slices;
  cut.clusters = std::min({cut.log_slices == 0 ? sms : MaxClusters(1 << cut.log_slices), items, kMaxClusters});
  if (groups > 1) cut.clusters = std::min(cut.clusters, std::max(1, cut.clusters / groups) * groups);
  return cut;
}

void Run(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count, const float* norm, float norm_eps) {
  DSV4_CHECK(count >= 1 && count <= kMaxTileLinearMatrices);
  Params p = {};
  p.num_matrices = count;
  p.norm = norm;
  p.norm_eps = norm_eps;
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
    p.policy = tokens == num_tokens ? kEvictFirst : kEvictNormal;
    p.x = x + first * p.x_stride;
    for (int i = 0; i < count; ++i) p.matrices[i].y = matrices[i].y + first * matrices[i].w.rows;
    if (nx == kExact) {
      LaunchExact(ctx, p);
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

void TileLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count, const float* norm, float norm_eps) {
  tile_linear::Run(ctx, x, num_tokens, matrices, count, norm, norm_eps);
}

}  // namespace dsv4
