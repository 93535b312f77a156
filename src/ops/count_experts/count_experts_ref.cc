#include <vector>

#include "ops/count_experts/count_experts.h"

namespace dsv4 {

void CountExpertsRef(const ExecContext&, const CountExpertsArgs& a) {
  const int64_t num_layers = a.chosen.dim(0), num_experts = a.chosen.dim(1);
  for (int64_t l = 0; l < num_layers; ++l) {
    int64_t* const chosen = a.chosen.i64() + l * num_experts;
    std::vector<int64_t> of_pass(static_cast<size_t>(num_experts));
    for (int64_t i = 0; i < a.num_ids; ++i) {
      const int32_t e = a.experts[l * a.layer_stride + i];
      if (e >= 0 && e < num_experts) ++of_pass[static_cast<size_t>(e)];
    }
    for (int64_t e = 0; e < num_experts; ++e) {
      const int64_t n = of_pass[static_cast<size_t>(e)];
      chosen[e] += n;
      if (a.passes) a.passes.i64()[l * num_experts + e] += n > 0 ? 1 : 0;
    }
  }
}

}  // namespace dsv4
