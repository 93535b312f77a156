#include <vector>

#include "ops/index_topk/index_topk.h"
#include "ops/index_topk/select.h"

namespace dsv4 {

void IndexTopkRef(const ExecContext&, const IndexTopkArgs& a) {
  const CompressorLayout& keys = a.cache.layer->index;
  const int64_t num_heads = a.q.dim(1), di = a.q.dim(2), k = a.topk_idxs.dim(1);
  std::vector<float> score, key(static_cast<size_t>(di));
  std::vector<int32_t> order;
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    const SequenceView& seq = a.cache.sequence(t);
    const int64_t visible = (a.cache.positions[t] + 1) / keys.ratio;
    score.assign(static_cast<size_t>(visible), 0.0f);
    for (int64_t w = 0; w < visible; ++w) {
      const RowSlot slot = EmittedRow(keys, seq, w);
      slot.rows.Read(slot.index, key.data());
      double sum = 0;
      for (int64_t h = 0; h < num_heads; ++h) {
        const float* q = a.q.f32() + (t * num_heads + h) * di;
        double dot = 0;
        for (int64_t i = 0; i < di; ++i) dot += static_cast<double>(q[i]) * key[static_cast<size_t>(i)];
        sum += a.weights.f32()[t * num_heads + h] * std::max(dot, 0.0);
      }
      score[static_cast<size_t>(w)] = static_cast<float>(sum);
    }
    SelectTopk(score.data(), visible, k, order, a.topk_idxs.i32() + t * k);
  }
}

}  // namespace dsv4
