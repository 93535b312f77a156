#include "ops/hc_head/hc_head.h"

#include "ops/hc_pre/mix.h"
#include "ops/hc_pre/stream_products.h"
#include "ops/hc_pre/streams.h"

namespace dsv4::DSV4_ISA {

void HcHeadCpu(const ExecContext& ctx, const HcHeadArgs& a) {
  const int64_t num_rows = a.streams.dim(0), h = a.streams.dim(1), d = a.streams.dim(2);
  static thread_local StreamProducts products;
  const float* dots = products.Multiply(ctx.pool, a.fn, a.streams.f32(), num_rows);
  ParallelFor(ctx.pool, num_rows, /*grain=*/4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = a.streams.f32() + r * h * d;
      const float rho = InverseRms(x, h * d, a.norm_eps);
      float pre[kMaxStreams];
      for (int64_t j = 0; j < h; ++j) {
        pre[j] = Sigmoid(rho * dots[r * h + j] * a.scale.f32()[0] + a.base.f32()[j]) + a.eps;
      }
      MixStreams(pre, h, x, d, a.out.f32() + r * d);
    }
  });
}

}  // namespace dsv4::DSV4_ISA
