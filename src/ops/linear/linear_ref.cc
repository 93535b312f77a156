#include <vector>

#include "ops/linear/linear.h"
#include "tensor/codec/activation.h"
#include "tensor/codec/weight.h"

namespace dsv4 {

void LinearRef(const ExecContext&, const LinearArgs& a) {
  const QuantTensor& w = a.parts.only().w;
  float* const y = a.parts.only().y.f32();
  const int64_t k_dim = w.cols, n_dim = w.rows / a.groups, num_inputs = a.x.dim(0) * a.groups;
  const float* inputs = a.x.f32();
  std::vector<float> rounded;
  if (RoundsToIntegers(a.activation, w.format)) {
    rounded.resize(static_cast<size_t>(num_inputs * k_dim));
    for (int64_t i = 0; i < num_inputs; ++i) {
      RoundToIntegerBlocks(inputs + i * k_dim, rounded.data() + i * k_dim, k_dim, IntegerBytes(a.activation));
    }
    inputs = rounded.data();
  }
  std::vector<double> row(static_cast<size_t>(k_dim));
  for (int64_t g = 0; g < a.groups; ++g) {
    for (int64_t n = 0; n < n_dim; ++n) {
      for (int64_t k = 0; k < k_dim; ++k) row[static_cast<size_t>(k)] = WeightValue(w, g * n_dim + n, k);
      for (int64_t i = g; i < num_inputs; i += a.groups) {
        const float* x = inputs + i * k_dim;
        double sum = 0;
        for (int64_t k = 0; k < k_dim; ++k) sum += x[k] * row[static_cast<size_t>(k)];
        y[i * n_dim + n] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace dsv4
