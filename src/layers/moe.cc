#include "layers/moe.h"

#include "layers/linear.h"
#include "ops/router/router.h"
#include "ops/swiglu/swiglu.h"

namespace dsv4 {

void Moe(const ExecContext& ctx, const MoeWeights& w, const MoeSettings& s, const Tensor& tokens, const Tensor& x,
         MoeBuffers& b, const Tensor& y) {
  const int64_t t = x.dim(0), num_slots = t * b.expert_ids.dim(1);

  const Tensor logits = b.router_logits.Head(t), ids = b.expert_ids.Head(t), weights = b.routing_weights.Head(t);
  const Tensor gate = b.shared_gate.Head(t), up = b.shared_up.Head(t);
  QuantLinears(ctx, s.activation, x, {{w.router, logits, /*rounds=*/false}, {w.shared.gate, gate}, {w.shared.up, up}}, b.rounded);
  Router(ctx, {.logits = logits, .bias = w.router_bias, .hash_table = w.hash_table, .tokens = tokens,
               .scaling_factor = s.scaling_factor, .experts = ids, .weights = weights});

  Swiglu(ctx, {.gate = gate, .up = up, .limit = s.limit, .y = gate});
  QuantLinear(ctx, s.activation, gate, w.shared.down, y, b.rounded);

  const ExpertWeights* table = w.table != nullptr ? w.table : w.experts.data();
  Experts(ctx, {.x = x, .experts = ids, .weights = weights, .matrices = {table, w.experts.size()},
                .first = w.experts.front(), .limit = s.limit, .activation = s.activation,
                .hidden = b.hidden.Head(num_slots), .outputs = b.outputs.Head(num_slots),
                .rounded_x = {b.rounded.data, DType::kF32, x.shape}, .shared = y, .y = y});
}

}  // namespace dsv4
