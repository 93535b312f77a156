#include <cmath>
#include <vector>

#include "ops/compress/compress.h"
#include "ops/compress/emit.h"

namespace dsv4 {

void CompressRef(const ExecContext&, const CompressArgs& a) {
  const CompressorLayout& c = *a.layout;
  const int64_t m = c.ratio, d = c.dim, width = c.overlap * d;
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    const float* bias = a.slot_bias.f32() + a.cache.positions[t] % m * width;
    for (int64_t i = 0; i < width; ++i) a.gates.f32()[t * width + i] += bias[i];
  }
  std::vector<float> pooled(static_cast<size_t>(d));
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    const int64_t position = a.cache.positions[t];
    if ((position + 1) % m != 0) continue;
    const SequenceView& seq = a.cache.sequence(t);
    const int64_t row = position / m;
    const int64_t first = std::max<int64_t>(0, (row - (c.overlap - 1)) * m);
    for (int64_t i = 0; i < d; ++i) {
      // Slots before the last window use the first d channels (series Ca), slots of the last window the last d (series
      // Cb).
      const auto channel = [&](int64_t p) { return p < row * m ? i : width - d + i; };
      double largest = -INFINITY, sum = 0, weighted = 0;
      for (int64_t p = first; p <= position; ++p) {
        largest = std::max<double>(largest, RowsAt(a, seq, p).gate[channel(p)]);
      }
      for (int64_t p = first; p <= position; ++p) {
        const SlotRows slot = RowsAt(a, seq, p);
        const double e = std::exp(slot.gate[channel(p)] - largest);
        sum += e;
        weighted += e * slot.value[channel(p)];
      }
      pooled[static_cast<size_t>(i)] = static_cast<float>(weighted / sum);
    }
    EmitRow(a, seq, row, pooled.data());
  }
  KeepState(a);
}

}  // namespace dsv4
