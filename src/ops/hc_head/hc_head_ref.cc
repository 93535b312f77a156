#include "ops/hc_head/hc_head.h"

#include <cmath>

#include "ops/hc_pre/mix.h"
#include "ops/hc_pre/streams.h"
#include "tensor/codec/weight.h"

namespace dsv4 {

void HcHeadRef(const ExecContext&, const HcHeadArgs& a) {
  const int64_t h = a.streams.dim(1), d = a.streams.dim(2), width = h * d;
  for (int64_t r = 0; r < a.streams.dim(0); ++r) {
    const float* x = a.streams.f32() + r * width;
    double square = 0;
    for (int64_t i = 0; i < width; ++i) square += static_cast<double>(x[i]) * x[i];
    const double rho = 1.0 / std::sqrt(square / static_cast<double>(width) + a.norm_eps);
    float pre[kMaxStreams];
    for (int64_t j = 0; j < h; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += x[i] * WeightValue(a.fn, j, i);
      pre[j] = Sigmoid(static_cast<float>(rho * sum) * a.scale.f32()[0] + a.base.f32()[j]) + a.eps;
    }
    for (int64_t i = 0; i < d; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < h; ++j) sum += pre[j] * x[j * d + i];
      a.out.f32()[r * d + i] = sum;
    }
  }
}

}  // namespace dsv4
