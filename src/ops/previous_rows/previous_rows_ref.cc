#include <algorithm>
#include <vector>

#include "ops/previous_rows/previous_rows.h"

namespace dsv4 {

void PreviousRowsRef(const ExecContext&, const PreviousRowsArgs& a) {
  const Tensor& any = a.x ? a.x : a.y;
  const int64_t width = any.dim(0) == 0 ? 0 : any.num_elements() / any.dim(0);
  std::vector<float> before(static_cast<size_t>(width)), own(static_cast<size_t>(width));
  for (int64_t s = 0; s < a.num_sequences; ++s) {
    const SequenceView& seq = a.sequences[s];
    float* ring = reinterpret_cast<float*>(seq.fixed + a.offset);
    const auto slot = [&](int64_t position) { return ring + position % a.slots * width; };
    for (int64_t t = seq.begin; t < seq.end; ++t) {
      const int64_t position = seq.start + t - seq.begin;
      if (t == seq.begin && position > 0 && a.y) std::copy_n(slot(position - 1), width, before.begin());
      if (a.x) std::copy_n(a.x.f32() + t * width, width, own.begin());
      if (a.y) std::copy_n(before.begin(), width, a.y.f32() + t * width);
      if (a.x && t >= seq.end - a.slots) std::copy_n(own.begin(), width, slot(position));
      before.swap(own);
    }
    std::fill(before.begin(), before.end(), 0.0f);
  }
}

}  // namespace dsv4
