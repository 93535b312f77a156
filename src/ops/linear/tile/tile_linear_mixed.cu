#include "ops/linear/tile/tile_linear_one.cuh"

namespace dsv4::tile_linear {

template void LaunchFormat<kMixed>(const ExecContext& ctx, const Params& p);

void LaunchExact(const ExecContext& ctx, const Params& p) { LaunchTileLinear<kMixed, 1, kExact>(ctx, p); }

}  // namespace dsv4::tile_linear
