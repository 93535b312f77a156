#include "layers/moe.h"

#include "layers/linear.h"
#include "ops/router/router.h"
#include "ops/swiglu/swiglu.h"

namespace dsv4 {

namespace {

// Decode rows on a GPU: the shared expert is one more of the routed ones, if it looks like them. That saves three launches and
// keeps more bytes in flight.
bool SharedIsRouted(const ExecContext& ctx, const MoeWeights& w) {
  const auto alike = [](const QuantTensor& a, const QuantTensor& b) {
    return a.format == b.format && a.layout == b.layout && a.rows == b.rows && a.cols == b.cols;
  };
  const ExpertWeights& e = w.experts.front();
  return ctx.device != DeviceKind::kCpu && w.table != nullptr && ctx.regime == Regime::kDecode &&
         alike(e.gate, w.shared.gate) && alike(e.up, w.shared.up) && alike(e.down, w.shared.down);
}

}  // namespace

Tensor Moe(const ExecContext& ctx, const MoeWeights& w, const MoeSettings& s, const Tensor& tokens, const LinearInput& in,
           MoeBuffers& b, const Tensor& y, bool leaves_slots) {
  const Tensor& x = in.x;
  const int64_t t = x.dim(0), most = b.expert_ids.dim(1), num_experts = b.router_logits.dim(1);
  const bool routed = SharedIsRouted(ctx, w);
  const int64_t slots = routed ? most : most - 1;

  const Tensor logits = b.router_logits.Head(t), ids{b.expert_ids.data, DType::kI32, {t, slots}},
               weights{b.routing_weights.data, DType::kF32, {t, slots}}, gate = b.shared_gate.Head(t), up = b.shared_up.Head(t);
  const LinearCall router{w.router, logits, /*rounds=*/false};
  RouterArgs route{.logits = logits, .bias = w.router_bias, .hash_table = w.hash_table, .tokens = tokens,
                   .scaling_factor = s.scaling_factor, .always = routed ? static_cast<int32_t>(num_experts) : -1, .experts = ids,
                   .weights = weights};
  route.x = x, route.w = w.router;
  if (!routed || !RouterMultiplies(ctx, route)) {
    route.x = {}, route.w = {};
    if (routed) {
      QuantLinears(ctx, s.activation, x, {router}, b.rounded);
    } else {
      QuantLinears(ctx, s.activation, in, {router, {w.shared.gate, gate}, {w.shared.up, up}}, b.rounded);
    }
  }
  Router(ctx, route);
  if (!routed) {
    // `gate` as blocks, where they are read: behind x's in `rounded` (model: Forward).
    uint8_t* blocks = nullptr;
    if (ReadsBlocks(ctx, s.activation, w.shared.down) && b.rounded.num_bytes() >= 2 * CeilDiv(t, 8) * 8 * (x.dim(1) + gate.dim(1))) {
      blocks = static_cast<uint8_t*>(b.rounded.data) + 2 * CeilDiv(t, 8) * 8 * x.dim(1);
    }
    Swiglu(ctx, {.gate = gate, .up = up, .limit = s.limit, .y = gate, .y_blocks = blocks});
    QuantLinear(ctx, s.activation, {gate, blocks}, w.shared.down, y, b.rounded);
  }

  const bool leaves = routed && leaves_slots;
  const ExpertWeights* table = w.table != nullptr ? w.table : w.experts.data();
  Experts(ctx, {.x = x, .experts = ids, .weights = weights, .matrices = {table, w.experts.size() + (routed ? 1 : 0)},
                .first = w.experts.front(), .limit = s.limit, .activation = s.activation,
                .hidden = b.hidden.Head(t * slots), .outputs = b.outputs.Head(t * slots),
                .rounded_x = {b.rounded.data, DType::kF32, x.shape}, .shared = routed ? Tensor{} : y,
                .y = leaves ? Tensor{} : y, .always = routed ? static_cast<int32_t>(num_experts) : -1,
                .x_blocks = RoundsInput(s.activation, w.experts.front().gate) ? nullptr : in.blocks});
  return leaves ? Tensor{b.outputs.data, DType::kF32, {t, slots, x.dim(1)}} : y;
}

}  // namespace dsv4
