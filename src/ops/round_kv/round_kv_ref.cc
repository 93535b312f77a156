#include "ops/round_kv/round_kv.h"

namespace dsv4 {

void RoundKvRef(const ExecContext& ctx, const RoundKvArgs& a) {
  if (a.format.kind == RowFormat::Kind::kF32) return;
  ParallelFor(ctx.pool, a.kv.dim(0), /*grain=*/8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) RoundRow(a.format, a.kv.f32() + t * a.kv.dim(1));
  });
}

}  // namespace dsv4
