#include "ops/hc_pre/hc_pre.h"

#include <cmath>

#include "ops/hc_pre/mix.h"
#include "ops/hc_pre/streams.h"
#include "tensor/codec/weight.h"

namespace dsv4 {

void HcPreRef(const ExecContext&, const HcPreArgs& a) {
  const int64_t h = a.streams.dim(1), d = a.streams.dim(2), width = h * d, num_mixes = (2 + h) * h;
  const float* base = a.base.f32();
  const float* scale = a.scale.f32();
  for (int64_t t = 0; t < a.streams.dim(0); ++t) {
    const float* x = a.streams.f32() + t * width;
    double square = 0;
    for (int64_t i = 0; i < width; ++i) square += static_cast<double>(x[i]) * x[i];
    const double rho = 1.0 / std::sqrt(square / static_cast<double>(width) + a.norm_eps);
    float m[(2 + kMaxStreams) * kMaxStreams];
    for (int64_t n = 0; n < num_mixes; ++n) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += x[i] * WeightValue(a.fn, n, i);
      m[n] = static_cast<float>(rho * sum);
    }
    float pre[kMaxStreams];
    float* post = a.post.f32() + t * h;
    float* comb = a.comb.f32() + t * h * h;
    for (int64_t j = 0; j < h; ++j) {
      pre[j] = Sigmoid(m[j] * scale[0] + base[j]) + a.eps;
      post[j] = 2.0f * Sigmoid(m[h + j] * scale[1] + base[h + j]);
    }
    for (int64_t i = 0; i < h * h; ++i) comb[i] = m[2 * h + i] * scale[2] + base[2 * h + i];
    Sinkhorn(comb, h, a.iters, a.eps);
    for (int64_t i = 0; i < d; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < h; ++j) sum += pre[j] * x[j * d + i];
      a.x.f32()[t * d + i] = sum;
    }
  }
}

}  // namespace dsv4
