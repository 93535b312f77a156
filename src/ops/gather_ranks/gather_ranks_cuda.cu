#include <algorithm>

#include "device/exchange.cuh"
#include "ops/gather_ranks/gather_ranks.h"

namespace dsv4 {

namespace {

// Stores the elements of a piece that begins at element `begin` of x [R, width].
template <int Count>
struct StoreColumns {
  float* y;
  int64_t begin, width;
  __device__ void operator()(int64_t i, const float (&part)[Count]) const {
    const int64_t row = (begin + i) / width, column = (begin + i) % width;
#pragma unroll
    for (int p = 0; p < Count; ++p) y[(row * Count + p) * width + column] = part[p];
  }
};

template <int Count>
void GatherPieces(const ExecContext& ctx, const GatherRanksArgs& a) {
  const int64_t n = a.x.num_elements(), width = n / a.x.dim(0), room = ctx.ranks->memory.elements;
  for (int64_t done = 0, site = a.site; done < n; done += room, ++site) {
    ExchangeOnGpu<Count>(ctx, a.x.f32() + done, std::min(room, n - done), site,
                         StoreColumns<Count>{a.y.f32(), done, width});
  }
}

}  // namespace

void GatherRanksCuda(const ExecContext& ctx, const GatherRanksArgs& a) {
  switch (ctx.ranks != nullptr ? ctx.ranks->count : 1) {
    case 1:
      if (cudaMemcpyAsync(a.y.f32(), a.x.f32(), static_cast<size_t>(a.x.num_bytes()), cudaMemcpyDeviceToDevice,
                          StreamOf(ctx)) != cudaSuccess) {
        NoteCudaError(ctx, cudaGetLastError(), "copy of one rank's columns");
      }
      return;
    case 2:
      return GatherPieces<2>(ctx, a);
    case 4:
      return GatherPieces<4>(ctx, a);
    default:
      return GatherPieces<8>(ctx, a);
  }
}

}  // namespace dsv4
