#include "ops/rms_norm/rms_norm.h"

#include <cmath>

namespace dsv4 {

void RmsNormRef(const ExecContext&, const RmsNormArgs& a) {
  const int64_t d = a.x.dim(1);
  const float* weight = a.weight ? a.weight.f32() : nullptr;
  for (int64_t r = 0; r < a.x.dim(0); ++r) {
    const float* x = a.x.f32() + r * d;
    float* y = a.y.f32() + r * d;
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += static_cast<double>(x[i]) * x[i];
    const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(d) + a.eps));
    for (int64_t i = 0; i < d; ++i) y[i] = x[i] * scale * (weight ? weight[i] : 1.0f);
  }
}

}  // namespace dsv4
