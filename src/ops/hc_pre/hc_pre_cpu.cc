#include "ops/hc_pre/hc_pre.h"

#include "ops/hc_pre/mix.h"
#include "ops/hc_pre/stream_products.h"
#include "ops/hc_pre/streams.h"

namespace dsv4::DSV4_ISA {

void HcPreCpu(const ExecContext& ctx, const HcPreArgs& a) {
  const int64_t num_tokens = a.streams.dim(0), h = a.streams.dim(1), d = a.streams.dim(2), num_mixes = (2 + h) * h;
  const float* base = a.base.f32();
  const float* scale = a.scale.f32();
  static thread_local StreamProducts products;
  const float* dots = products.Multiply(ctx.pool, a.fn, a.streams.f32(), num_tokens);
  ParallelFor(ctx.pool, num_tokens, /*grain=*/2, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = a.streams.f32() + t * h * d;
      const float rho = InverseRms(x, h * d, a.norm_eps);
      float m[(2 + kMaxStreams) * kMaxStreams];
      for (int64_t n = 0; n < num_mixes; ++n) m[n] = rho * dots[t * num_mixes + n];
      float pre[kMaxStreams];
      float* post = a.post.f32() + t * h;
      float* comb = a.comb.f32() + t * h * h;
      for (int64_t j = 0; j < h; ++j) {
        pre[j] = Sigmoid(m[j] * scale[0] + base[j]) + a.eps;
        post[j] = 2.0f * Sigmoid(m[h + j] * scale[1] + base[h + j]);
      }
      for (int64_t i = 0; i < h * h; ++i) comb[i] = m[2 * h + i] * scale[2] + base[2 * h + i];
      Sinkhorn(comb, h, a.iters, a.eps);
      MixStreams(pre, h, x, d, a.x.f32() + t * d);
    }
  });
}

}  // namespace dsv4::DSV4_ISA
