#include "ops/rope/rope.h"

namespace dsv4 {

void RopeRef(const ExecContext& ctx, const RopeArgs& a) {
  const int64_t num_heads = a.x.dim(1), dh = a.x.dim(2), pairs = a.cos_sin.dim(1);
  ParallelFor(ctx.pool, a.x.dim(0), /*grain=*/8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* cs = a.cos_sin.f32() + t * pairs * 2;
      for (int64_t n = 0; n < num_heads; ++n) {
        float* tail = a.x.f32() + (t * num_heads + n + 1) * dh - 2 * pairs;
        for (int64_t i = 0; i < pairs; ++i) {
          const float c = cs[2 * i], s = a.inverse ? -cs[2 * i + 1] : cs[2 * i + 1];
          const float even = tail[2 * i], odd = tail[2 * i + 1];
          tail[2 * i] = even * c - odd * s;
          tail[2 * i + 1] = even * s + odd * c;
        }
      }
    }
  });
}

}  // namespace dsv4
