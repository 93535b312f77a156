#include "ops/linear/tile/tile_linear_one.cuh"

namespace dsv4::tile_linear {

template void LaunchFormat<WeightFormat::kMxfp4>(const ExecContext& ctx, const Params& p);
template void LaunchPushing<WeightFormat::kMxfp4>(const ExecContext& ctx, const Params& p, int64_t site);

}  // namespace dsv4::tile_linear
