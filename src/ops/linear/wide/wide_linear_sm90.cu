#include "ops/linear/wide/wide_linear.h"

#include <algorithm>

#include "base/check.h"
#include "device/launch.cuh"
#include "ops/linear/wide/wide_kernel_sm90.cuh"

namespace dsv4 {

namespace wide_linear {

namespace {

constexpr int kMostTokenTiles = 16;  // of a launch

// One launch per format.
struct Launches {
  WeightFormat formats[kMaxTileLinearMatrices];
  Params params[kMaxTileLinearMatrices];
  int count = 0;
};

int64_t TileTokens(int64_t num_tokens) { return num_tokens <= kFewTokens ? kFewTokens : kManyTokens; }

Params ParamsOf(const ExecContext& ctx, int64_t items, const TileLinearMatrix& first, int64_t num_tokens) {
  Params p = {};
  p.num_tokens = static_cast<int>(num_tokens);
  p.tile_tokens = static_cast<int>(TileTokens(num_tokens));
  p.token_tiles = static_cast<int>(CeilDiv(num_tokens, p.tile_tokens));
  p.groups = static_cast<int>(first.groups);
  p.slabs = static_cast<int>(CeilDiv(first.w.cols, kTileCols64));
  p.scale_stride = static_cast<int>(CeilDiv(first.w.cols, kFp8BlockSize));
  p.log_segments = tile_linear::LogSegments(ctx, p.slabs, items);
  return p;
}

void AddMatrix(const TileLinearMatrix& in, int64_t first_token, Params& p) {
  const QuantTensor& w = in.w;
  const int64_t n = w.rows / in.groups;
  p.matrices[p.count++] = {.codes = w.codes,
                           .scales = reinterpret_cast<const float*>(w.block_scale),
                           .y = in.y + first_token * w.rows,
                           .factor = w.global_scale * MmaFactor(w.format),
                           .n = static_cast<int>(n),
                           .y_stride = static_cast<int>(w.rows),
                           .first_step = p.row_steps};
  p.row_steps += static_cast<int>(CeilDiv(tile_linear::ItemsOf(w, in.groups) / in.groups, sm90::kRowTiles));
}

// Units of whole K need the least memory traffic and start-up; units of one segment spread best.
int ChooseLogSplits(const ExecContext& ctx, const Params& p) {
  constexpr int64_t kUnitSlabs = 3, kSplitSlabs = 2;  // costs, in slabs: per unit, per split
  static_assert(kLevels == 3, "the levels of LogSegments' segments");
  const int64_t sms = ctx.gpu.multiprocessors;
  int best = 0;
  int64_t best_cost = INT64_MAX;
  for (int splits = 0; splits <= p.log_segments; ++splits) {
    const int64_t units = int64_t{p.outputs()} << splits;
    if (splits > 0 && units > 8 * sms) break;
    const int64_t cost = CeilDiv(units, sms) *
                         (CeilDiv(p.slabs, 1 << splits) + kUnitSlabs + (splits > 0 ? kSplitSlabs : 0));
    if (cost < best_cost) best = splits, best_cost = cost;
  }
  return best;
}

int GridOf(const ExecContext& ctx, const Params& p) { return std::min(p.units(), ctx.gpu.multiprocessors); }

// Assigns scratch memory to the launches of a call. Returns the bytes that they need.
int64_t Place(const ExecContext& ctx, uint8_t* data, Inputs& inputs, Launches& launches) {
  int64_t bytes = 0;
  const auto take = [&](int64_t size) {
    uint8_t* const at = data + bytes;
    bytes += CeilDiv(size, 1024) * 1024;
    return at;
  };
  inputs.out = take(int64_t{inputs.tiles()} * InputBytes(inputs.tile_tokens));
  inputs.row_scales = reinterpret_cast<float*>(take(inputs.num_tokens * 4));
  int64_t kept = 0, parts = 0;  // launches run one after the other
  inputs.num_counters = 0;
  for (int i = 0; i < launches.count; ++i) {
    const Params& p = launches.params[i];
    const int64_t sums = UnitSumsBytes(p.tile_tokens);
    if (p.log_segments - p.log_splits > kSharedLevels) kept = std::max(kept, GridOf(ctx, p) * sums);
    if (p.log_splits == 0) continue;
    parts = std::max(parts, p.units() * sums);
    inputs.num_counters = std::max(inputs.num_counters, 8 * p.outputs());
  }
  inputs.counters = reinterpret_cast<int*>(take(int64_t{inputs.num_counters} * 4));
  uint8_t* const kept_at = take(kept);
  uint8_t* const parts_at = take(parts);
  for (int i = 0; i < launches.count; ++i) {
    Params& p = launches.params[i];
    p.inputs = inputs.out;
    p.row_scales = inputs.norm != nullptr ? inputs.row_scales : nullptr;
    p.counters = inputs.counters;
    p.kept = reinterpret_cast<float4*>(kept_at);
    p.parts = reinterpret_cast<float4*>(parts_at);
  }
  return bytes;
}

template <WeightFormat F, int kTokens>
void LaunchTiles(const ExecContext& ctx, const Params& p) {
  Launch(ctx, WideLinearKernel<F, kTokens>, dim3(static_cast<unsigned>(GridOf(ctx, p))), dim3(kGemmThreads),
         static_cast<size_t>(SharedBytes(F, kTokens)), p);
}

template <WeightFormat F>
void LaunchWide(const ExecContext& ctx, const Params& p) {
  p.tile_tokens == kFewTokens ? LaunchTiles<F, kFewTokens>(ctx, p) : LaunchTiles<F, kManyTokens>(ctx, p);
}

// One call: all matrices, and the values that all its tokens share.
struct Call {
  const ExecContext& ctx;
  const float* x;
  const TileLinearMatrix* matrices;
  int count;
  const float* norm;
  float norm_eps;
  int64_t items = 0;
};

Launches LaunchesOf(const Call& c, int64_t first_token, int64_t num_tokens) {
  Launches launches;
  for (int i = 0; i < c.count; ++i) {
    const WeightFormat format = c.matrices[i].w.format;
    if (c.matrices[i].w.rows == 0) continue;
    int at = static_cast<int>(std::find(launches.formats, launches.formats + launches.count, format) -
                              launches.formats);
    if (at == launches.count) {
      launches.formats[at] = format;
      launches.params[launches.count++] = ParamsOf(c.ctx, c.items, c.matrices[0], num_tokens);
    }
    AddMatrix(c.matrices[i], first_token, launches.params[at]);
  }
  for (int i = 0; i < launches.count; ++i) launches.params[i].log_splits = ChooseLogSplits(c.ctx, launches.params[i]);
  return launches;
}

Inputs InputsOf(const Call& c, int64_t first_token, int64_t num_tokens) {
  const TileLinearMatrix& m = c.matrices[0];
  const int64_t k = m.w.cols;
  const float* x = c.x + first_token * m.groups * k;
  Inputs in = {};
  in.x = x, in.norm = c.norm, in.norm_eps = c.norm_eps;
  in.num_tokens = static_cast<int>(num_tokens);
  in.tile_tokens = static_cast<int>(TileTokens(num_tokens));
  in.token_tiles = static_cast<int>(CeilDiv(num_tokens, in.tile_tokens));
  in.groups = static_cast<int>(m.groups);
  in.k = static_cast<int>(k);
  in.slabs = static_cast<int>(CeilDiv(k, kTileCols64));
  in.scale_blocks = c.norm != nullptr ? static_cast<int>(CeilDiv(num_tokens, kInputWarps)) : 0;
  in.aligned = k % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  in.norm_aligned = k % 4 == 0 && reinterpret_cast<uintptr_t>(c.norm) % 16 == 0;
  return in;
}

// Computes tokens [first, first + num_tokens). Returns false if the scratch memory is too small.
bool RunTokens(const Call& c, int64_t first, int64_t num_tokens) {
  Launches launches = LaunchesOf(c, first, num_tokens);
  Inputs inputs = InputsOf(c, first, num_tokens);
  if (Place(c.ctx, c.ctx.scratch.data, inputs, launches) > c.ctx.scratch.bytes) return false;
  ConvertInputs(c.ctx, inputs);
  for (int i = 0; i < launches.count; ++i) {
    WithTileFormat(launches.formats[i], [&]<WeightFormat F>() { LaunchWide<F>(c.ctx, launches.params[i]); });
  }
  return true;
}

}  // namespace

}  // namespace wide_linear

void WideLinear(const ExecContext& ctx, const float* x, int64_t num_tokens, const TileLinearMatrix* matrices, int count,
                const float* norm, float norm_eps) {
  using namespace wide_linear;  // NOLINT: this function's
  DSV4_CHECK(count >= 1 && count <= kMaxTileLinearMatrices);
  Call call = {ctx, x, matrices, count, norm, norm_eps};
  for (int i = 0; i < count; ++i) {
    const TileLinearMatrix& m = matrices[i];
    DSV4_CHECK(m.w.layout == WeightLayout::kTiles && m.w.cols == matrices[0].w.cols && m.push_site == kNoSite &&
               (m.groups == 1 || (count == 1 && norm == nullptr)));
    call.items += tile_linear::ItemsOf(m.w, m.groups);
  }
  if (call.items == 0) return;
  int64_t most = int64_t{kMostTokenTiles} * kManyTokens;
  for (int64_t first = 0; first < num_tokens;) {
    const int64_t tokens = std::min(most, num_tokens - first);
    if (RunTokens(call, first, tokens)) {
      first += tokens;
    } else {
      DSV4_CHECK(most > kManyTokens, "scratch of ", ctx.scratch.bytes, " bytes");
      most /= 2;
    }
  }
}

}  // namespace dsv4
