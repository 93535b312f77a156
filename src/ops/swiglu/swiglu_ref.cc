#include "ops/swiglu/swiglu.h"

#include <algorithm>
#include <cmath>

namespace dsv4 {

void SwigluRef(const ExecContext& ctx, const SwigluArgs& a) {
  const int64_t f = a.gate.dim(1);
  const float limit = a.limit;
  ParallelFor(ctx.pool, a.gate.dim(0), /*grain=*/4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float weight = a.weight ? a.weight.f32()[r] : 1.0f;
      for (int64_t i = r * f; i < (r + 1) * f; ++i) {
        const float gate = std::min(a.gate.f32()[i], limit);
        const float up = std::clamp(a.up.f32()[i], -limit, limit);
        a.y.f32()[i] = gate / (1.0f + std::exp(-gate)) * up * weight;
      }
    }
  });
}

}  // namespace dsv4
