#include <algorithm>
#include <span>

#include "device/exchange_bulk.cuh"
#include "ops/gather_shares/gather_shares.h"

namespace dsv4 {

namespace {

// Copies `n` floats of rank p's share of `a`, from element `at`, to their positions, run by run.
void PlaceCopied(const ExecContext& ctx, const BulkArray& a, int p, const float* from, int64_t at, int64_t n) {
  for (int64_t done = 0; done < n;) {
    const int64_t i = at + done, column = i / a.run(p), size = std::min(n - done, (column + 1) * a.run(p) - i);
    float* to = a.all + a.begin[p] + column * a.stride + i % a.run(p);
    const cudaError_t error = cudaMemcpyAsync(to, from + done, static_cast<size_t>(size) * 4, cudaMemcpyDeviceToDevice,
                                              StreamOf(ctx));
    if (error != cudaSuccess) NoteCudaError(ctx, error, "copy of another rank's rows");
    done += size;
  }
}

// Transport kEvents: sends each value in pieces of the size of the memory for copies.
void CopyShares(const ExecContext& ctx, const BulkArrays& arrays, int64_t site) {
  const RankView& ranks = *ctx.ranks;
  const int64_t room = ranks.memory.elements;
  for (int v = 0; v < arrays.count; ++v) {
    const BulkArray& a = arrays.arrays[v];
    if (a.columns > 1 && a.size(ranks.rank) > 0) PlaceCopied(ctx, a, ranks.rank, a.own, 0, a.size(ranks.rank));
    int64_t longest = 0;
    for (int p = 0; p < ranks.count; ++p) longest = std::max(longest, a.size(p));
    for (int64_t done = 0; done < longest; done += room) {
      const auto size = [&](int r) { return std::clamp<int64_t>(a.size(r) - done, 0, room); };
      const float* slots = CopyToRanks(ctx, a.own + done, size(ranks.rank), site++);
      if (slots == nullptr) return;
      for (int p = 0; p < ranks.count; ++p) {
        if (p != ranks.rank) PlaceCopied(ctx, a, p, slots + p * room, done, size(p));
      }
    }
  }
}

BulkArrays ArraysOf(const GatherSharesArgs& a, int count) {
  static_assert(GatherSharesArgs::kMost <= kMostBulkArrays);
  BulkArrays arrays;
  for (const SharedValue& v : std::span(a.values).first(static_cast<size_t>(a.num_values)))
    arrays.arrays[arrays.count++] = BulkArray::Of(v.own, v.all, v.units, count, v.grain, v.unit, v.columns);
  return arrays;
}

void TakeEarly(const ExecContext& ctx, const BulkArrays& arrays, int64_t site) {
  const RankView& ranks = *ctx.ranks;
  const auto kernel = ranks.count == 2   ? TakeEarlyKernel<2>
                      : ranks.count == 4 ? TakeEarlyKernel<4>
                                         : TakeEarlyKernel<8>;
  const uint64_t sent = EndEarly(ctx);
  Launch(ctx, kernel, dim3(static_cast<unsigned>(2 * ctx.gpu.multiprocessors)), dim3(kBulkThreads), 0, ranks.memory,
         ranks.rank, arrays, sent, site);
}

}  // namespace

void SendSharesCuda(const ExecContext& ctx, const GatherSharesArgs& a) {
  SendEarly(ctx, ArraysOf(a, ctx.ranks->count));
}

void GatherSharesCuda(const ExecContext& ctx, const GatherSharesArgs& a) {
  const int count = ctx.ranks->count;
  const BulkArrays arrays = ArraysOf(a, count);
  if (a.sent) return TakeEarly(ctx, arrays, a.site);
  if (ctx.ranks->memory.bulk_floats == 0) return CopyShares(ctx, arrays, a.site);
  const BulkKernel kernel = count == 2   ? GatherSharesKernel<2>
                            : count == 4 ? GatherSharesKernel<4>
                                         : GatherSharesKernel<8>;
  ExchangeInBulk(ctx, kernel, arrays, a.site, ShareExchanges(ctx, a));
}

}  // namespace dsv4
