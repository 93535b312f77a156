#include "ops/linear/tile/tile_linear_one.cuh"

namespace dsv4::tile_linear {

template void LaunchFormat<WeightFormat::kBf16>(const ExecContext& ctx, const Params& p);

}  // namespace dsv4::tile_linear
