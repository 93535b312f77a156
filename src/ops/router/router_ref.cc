#include "ops/router/router.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/idle_row.h"

namespace dsv4 {

namespace {

float SqrtSoftplus(float z) {
  const float softplus = z > 20.0f ? z : std::log1p(std::exp(z));
  return std::sqrt(softplus);
}

// The A experts of largest s + bias, ties to the lower expert.
void PickLearned(const float* s, const float* bias, int64_t num_experts, int64_t count, int32_t* picked) {
  static thread_local std::vector<bool> taken;
  taken.assign(static_cast<size_t>(num_experts), false);
  for (int64_t a = 0; a < count; ++a) {
    int64_t best = -1;
    for (int64_t e = 0; e < num_experts; ++e) {
      if (taken[static_cast<size_t>(e)]) continue;
      if (best < 0 || s[e] + bias[e] > s[best] + bias[best]) best = e;
    }
    taken[static_cast<size_t>(best)] = true;
    picked[a] = static_cast<int32_t>(best);
  }
}

}  // namespace

void RouterRef(const ExecContext& ctx, const RouterArgs& a) {
  const int64_t num_experts = a.logits.dim(1), first = a.always >= 0 ? 1 : 0, count = a.experts.dim(1) - first;
  ParallelFor(ctx.pool, a.logits.dim(0), /*grain=*/8, [&](int64_t begin, int64_t end, int) {
    static thread_local std::vector<float> s;
    s.resize(static_cast<size_t>(num_experts));
    for (int64_t t = begin; t < end; ++t) {
      if (a.tokens && a.tokens.i32()[t] == kIdleToken) {
        std::fill_n(a.experts.i32() + t * (first + count), first + count, kNoExpert);
        std::fill_n(a.weights.f32() + t * (first + count), first + count, 0.0f);
        continue;
      }
      for (int64_t e = 0; e < num_experts; ++e) {
        s[static_cast<size_t>(e)] = SqrtSoftplus(a.logits.f32()[t * num_experts + e]);
      }
      int32_t* picked = a.experts.i32() + t * (first + count) + first;
      float* weights = a.weights.f32() + t * (first + count) + first;
      if (first == 1) picked[-1] = a.always, weights[-1] = 1;
      if (a.hash_table) {
        const int64_t token = a.tokens.i32()[t];
        DSV4_CHECK(token >= 0 && token < a.hash_table.dim(0), "token ", token);
        const int32_t* row = a.hash_table.i32() + token * count;
        for (int64_t i = 0; i < count; ++i) {
          DSV4_CHECK(row[i] >= 0 && row[i] < num_experts, "token ", token, " names expert ", row[i]);
          picked[i] = row[i];
        }
      } else {
        PickLearned(s.data(), a.bias.f32(), num_experts, count, picked);
      }
      float sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += s[static_cast<size_t>(picked[i])];
      for (int64_t i = 0; i < count; ++i) {
        // If all scores underflow to 0 the quotient is 0/0. transformers adds 1e-20 (docs/dev/model.md).
        weights[i] = s[static_cast<size_t>(picked[i])] / (sum + 1e-20f) * a.scaling_factor;
      }
    }
  });
}

}  // namespace dsv4
