#include <vector>

#include "ops/experts/experts.h"
#include "ops/idle_row.h"
#include "ops/linear/linear.h"
#include "ops/round_activation/round_activation.h"
#include "ops/swiglu/swiglu.h"

namespace dsv4 {

// The composition of the unfused references, one token and one expert at a time.
void ExpertsRef(const ExecContext&, const ExpertsArgs& a) {
  const ExecContext ctx{.pool = nullptr, .reference_ops = true};
  const int64_t d = a.x.dim(1), count = a.experts.dim(1);
  const auto round = [&](const Tensor& x, const QuantTensor& w, std::vector<float>& buffer) {
    if (IsInteger(a.activation) ? !RoundsToIntegers(a.activation, w.format) : !w.quantised()) return x;
    buffer.resize(static_cast<size_t>(x.num_elements()));
    const Tensor rounded{buffer.data(), DType::kF32, x.shape};
    RoundActivation(ctx, {.x = x, .y = rounded, .mode = a.activation});
    return rounded;
  };
  std::vector<float> x_buffer, h_buffer, gate, up, out(static_cast<size_t>(d));
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    const Tensor x{a.x.f32() + t * d, DType::kF32, {1, d}};
    std::vector<double> sum(a.shared.f32() + t * d, a.shared.f32() + (t + 1) * d);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t e = a.experts.i32()[t * count + i];
      if (e == kNoExpert) continue;
      DSV4_CHECK(e >= 0 && e < static_cast<int64_t>(a.matrices.size()), "expert ", e);
      const ExpertMatrices& m = a.matrices[static_cast<size_t>(e)];
      const int64_t f = m.gate.rows;
      gate.resize(static_cast<size_t>(f));
      up.resize(static_cast<size_t>(f));
      const Tensor g{gate.data(), DType::kF32, {1, f}}, u{up.data(), DType::kF32, {1, f}};
      Linear(ctx, {.x = round(x, m.gate, x_buffer), .parts = {{m.gate, g}}});
      Linear(ctx, {.x = round(x, m.up, x_buffer), .parts = {{m.up, u}}});
      const Tensor weight{a.weights.f32() + t * count + i, DType::kF32, {1}};
      Swiglu(ctx, {.gate = g, .up = u, .weight = weight, .limit = a.limit, .y = g});
      Linear(ctx, {.x = round(g, m.down, h_buffer), .parts = {{m.down, {out.data(), DType::kF32, {1, d}}}}});
      for (int64_t c = 0; c < d; ++c) sum[static_cast<size_t>(c)] += out[static_cast<size_t>(c)];
    }
    for (int64_t c = 0; c < d; ++c) a.y.f32()[t * d + c] = static_cast<float>(sum[static_cast<size_t>(c)]);
  }
}

}  // namespace dsv4
