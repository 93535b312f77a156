#include "ops/linear/linear.h"

#include <vector>

#include "tensor/codec/activation.h"
#include "tensor/codec/weight.h"

namespace dsv4 {

void LinearRef(const ExecContext&, const LinearArgs& a) {
  const int64_t k_dim = a.w.cols, n_dim = a.w.rows / a.groups;
  std::vector<float> rounded(static_cast<size_t>(k_dim));
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    for (int64_t g = 0; g < a.groups; ++g) {
      const float* x = a.x.f32() + (t * a.groups + g) * k_dim;
      if (RoundsToIntegers(a.activation, a.w.format)) {
        RoundToIntegerBlocks(x, rounded.data(), k_dim, IntegerBytes(a.activation));
        x = rounded.data();
      }
      for (int64_t n = 0; n < n_dim; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < k_dim; ++k) sum += x[k] * WeightValue(a.w, g * n_dim + n, k);
        a.y.f32()[(t * a.groups + g) * n_dim + n] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace dsv4
