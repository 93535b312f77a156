#include "ops/hc_post/hc_post.h"

#include "ops/hc_pre/streams.h"

namespace dsv4 {

void HcPostRef(const ExecContext& ctx, const HcPostArgs& a) {
  const int64_t h = a.streams.dim(1), d = a.streams.dim(2);
  ParallelFor(ctx.pool, a.streams.dim(0), /*grain=*/8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* post = a.post.f32() + t * h;
      const float* comb = a.comb.f32() + t * h * h;
      const float* y = a.y.f32() + t * d;
      float* streams = a.streams.f32() + t * h * d;
      for (int64_t i = 0; i < d; ++i) {
        float old[kMaxStreams];
        for (int64_t j = 0; j < h; ++j) old[j] = streams[j * d + i];
        for (int64_t k = 0; k < h; ++k) {
          float sum = post[k] * y[i];
          for (int64_t j = 0; j < h; ++j) sum += comb[j * h + k] * old[j];
          streams[k * d + i] = sum;
        }
      }
    }
  });
}

}  // namespace dsv4
