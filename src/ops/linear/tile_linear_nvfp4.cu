#include <map>
#include <mutex>

#include "ops/linear/tile_linear_one.cuh"

namespace dsv4::tile_linear {

template void LaunchFormat<WeightFormat::kNvfp4>(const ExecContext& ctx, const Params& p);

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

}  // namespace dsv4::tile_linear
