#include <cmath>
#include <vector>

#include "ops/sparse_attention/rows.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4 {

void SparseAttentionRef(const ExecContext&, const SparseAttentionArgs& a) {
  const int64_t num_heads = a.q.dim(1), dh = a.q.dim(2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dh));
  std::vector<float> rows;
  std::vector<double> p, out(static_cast<size_t>(dh));
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    const AttendedRows attended(a, t);
    const int64_t n_rows = attended.size();
    rows.resize(static_cast<size_t>(n_rows * dh));
    for (int64_t i = 0; i < n_rows; ++i) {
      float* buffer = rows.data() + i * dh;
      const float* row = attended.Get(i, buffer);
      if (row != buffer) std::copy(row, row + dh, buffer);
    }
    p.resize(static_cast<size_t>(n_rows));
    for (int64_t n = 0; n < num_heads; ++n) {
      const float* q = a.q.f32() + (t * num_heads + n) * dh;
      const double sink = a.sink.f32()[n];
      double largest = sink;
      for (int64_t i = 0; i < n_rows; ++i) {
        double dot = 0;
        for (int64_t c = 0; c < dh; ++c) dot += static_cast<double>(q[c]) * rows[static_cast<size_t>(i * dh + c)];
        p[static_cast<size_t>(i)] = dot * scale;
        largest = std::max(largest, dot * scale);
      }
      double sum = std::exp(sink - largest);
      std::fill(out.begin(), out.end(), 0.0);
      for (int64_t i = 0; i < n_rows; ++i) {
        const double e = std::exp(p[static_cast<size_t>(i)] - largest);
        sum += e;
        for (int64_t c = 0; c < dh; ++c) out[static_cast<size_t>(c)] += e * rows[static_cast<size_t>(i * dh + c)];
      }
      for (int64_t c = 0; c < dh; ++c) {
        a.out.f32()[(t * num_heads + n) * dh + c] = static_cast<float>(out[static_cast<size_t>(c)] / sum);
      }
    }
  }
}

}  // namespace dsv4
