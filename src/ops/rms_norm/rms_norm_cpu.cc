#include "ops/rms_norm/rms_norm.h"

#include <cmath>

#include "ops/square_sum.h"

namespace dsv4::DSV4_ISA {

void RmsNormCpu(const ExecContext& ctx, const RmsNormArgs& a) {
  const int64_t d = a.x.dim(1), whole = d / kLanes * kLanes;
  const float* weight = a.weight ? a.weight.f32() : nullptr;
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(d, 1));
  ParallelFor(ctx.pool, a.x.dim(0), grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = a.x.f32() + r * d;
      float* y = a.y.f32() + r * d;
      const float scale = 1.0f / std::sqrt(SquareSum(x, d) / static_cast<float>(d) + a.eps);
      for (int64_t i = 0; i < whole; i += kLanes) {
        const Vec scaled = Mul(Load(x + i), Set(scale));
        Store(y + i, weight != nullptr ? Mul(scaled, Load(weight + i)) : scaled);
      }
      for (int64_t i = whole; i < d; ++i) y[i] = x[i] * scale * (weight != nullptr ? weight[i] : 1.0f);
    }
  });
}

}  // namespace dsv4::DSV4_ISA
