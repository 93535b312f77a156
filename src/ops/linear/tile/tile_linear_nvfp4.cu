#include "device/active_clusters.h"
#include "ops/linear/tile/tile_linear_one.cuh"

namespace dsv4::tile_linear {

template void LaunchFormat<WeightFormat::kNvfp4>(const ExecContext& ctx, const Params& p);
template void LaunchPushing<WeightFormat::kNvfp4>(const ExecContext& ctx, const Params& p, int64_t site);

// The number of clusters of `slices` blocks that run at once. A cluster runs in one GPC, and GPCs have different
// numbers of multiprocessors.
int MaxClusters(const ExecContext& ctx, int slices) {
  constexpr int kOnePerMultiprocessor = 160 * 1024;
  const auto kernel = TileLinearKernel<WeightFormat::kNvfp4, 1, kPair>;
  const int count = MaxActiveClusters(ctx, reinterpret_cast<const void*>(kernel), slices,
                                      ctx.gpu.multiprocessors / slices * slices, kThreads, kOnePerMultiprocessor);
  return count > 0 ? count : std::max(1, ctx.gpu.multiprocessors / (2 * slices));
}

}  // namespace dsv4::tile_linear
