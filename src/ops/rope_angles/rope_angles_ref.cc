#include "ops/rope_angles/rope_angles.h"

#include <cmath>

namespace dsv4 {

void RopeAnglesRef(const ExecContext& ctx, const RopeAnglesArgs& a) {
  const int64_t pairs = a.frequencies.dim(0);
  ParallelFor(ctx.pool, a.positions.dim(0), /*grain=*/16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < pairs; ++i) {
        const float angle = static_cast<float>(a.positions.i64()[t]) * a.frequencies.f32()[i];
        float* out = a.cos_sin.f32() + (t * pairs + i) * 2;
        out[0] = static_cast<float>(std::cos(static_cast<double>(angle)));
        out[1] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
}

}  // namespace dsv4
