#include "layers/moe.h"

#include "layers/linear.h"
#include "layers/plan.h"
#include "ops/gather_shares/gather_shares.h"
#include "ops/router/router.h"
#include "ops/swiglu/swiglu.h"

namespace dsv4 {

namespace {

// Which experts a token has, and with what weights. With the shared expert among them, it is the first of each token's.
struct Routing {
  Tensor experts, weights;  // i32, f32 [T, slots]
  int32_t always;           // the shared expert's number, or -1
  int64_t slots() const { return experts.dim(1); }
};

Routing RoutingIn(const MoePlan& plan, const MoeBuffers& b, int64_t t) {
  const int64_t slots = b.expert_ids.dim(1) - (plan.shared_is_routed ? 0 : 1);
  return {.experts = {b.expert_ids.data, DType::kI32, {t, slots}},
          .weights = {b.routing_weights.data, DType::kF32, {t, slots}},
          .always = plan.shared_is_routed ? static_cast<int32_t>(b.router_logits.dim(1)) : -1};
}

// The router's logits and choice; what else reads x, the shared expert's first two matrices, goes along where it reads
// the same rows.
void Route(const ExecContext& ctx, const MoePlan& plan, const MoeWeights& w, const MoeSettings& s, const Tensor& tokens,
           const Activation& x, const MoeBuffers& b, const Routing& to) {
  const int64_t t = x.x.dim(0);
  RouterArgs route{.logits = b.router_logits.Head(t),
                   .bias = w.router_bias,
                   .hash_table = w.hash_table,
                   .tokens = tokens,
                   .scaling_factor = s.scaling_factor,
                   .always = to.always,
                   .experts = to.experts,
                   .weights = to.weights};
  const LinearCall logits{w.router, Input::kAsIs, route.logits};
  if (plan.router_multiplies) {
    route.x = x.x, route.w = w.router;
  } else if (plan.shared_is_routed) {
    QuantLinear(ctx, s.activation, x.x, {logits}, b.rounded);
  } else if (plan.by_tokens) {
    QuantLinear(ctx, s.activation, x, {logits}, b.rounded);
  } else {
    QuantLinear(
        ctx, s.activation, x,
        {logits, {w.shared.gate, plan.gate, b.shared_gate.Head(t)}, {w.shared.up, plan.up, b.shared_up.Head(t)}},
        b.rounded);
  }
  Router(ctx, route);
}

// A rank routes its own rows; then all have all rows, as the plan gathers them, and what was chosen for them.
Activation RouteOwnRows(const ExecContext& ctx, const MoePlan& plan, const MoeWeights& w, const MoeSettings& s,
                        const Tensor& tokens, const Activation& x, const MoeBuffers& b, const Routing& to,
                        int64_t* site) {
  const int64_t t = x.x.dim(0), d = x.x.dim(1);
  const RankShare own = RowsOfRank(ctx, t);
  const auto of_own = [&](const Tensor& rows) { return rows.Rows(own.begin, own.end - own.begin); };
  if (own.end > own.begin) {
    Route(ctx, plan, w, s, of_own(tokens), {x.form, of_own(x.x), x.blocks}, b,
          {of_own(to.experts), of_own(to.weights), to.always});
  }
  GatherSharesArgs shares{.site = *site};
  Activation all = x.x;
  if (plan.gathered == Form::kBlocks) {
    all = {Form::kBlocks, {nullptr, DType::kF32, x.x.shape}, b.rounded.Blocks(t, d)};
    shares.AddBlocks(x.blocks, all.blocks, t, d);
  } else {
    shares.AddRows(ctx, x.x);
  }
  shares.AddRows(ctx, to.experts);
  shares.AddRows(ctx, to.weights);
  GatherShares(ctx, shares);
  *site += ShareExchanges(ctx, shares);
  QuantLinear(ctx, s.activation, all,
              {{w.shared.gate, plan.gate, b.shared_gate.Head(t)}, {w.shared.up, plan.up, b.shared_up.Head(t)}},
              b.rounded);
  return all;
}

// From gate and up on.
void SharedExpert(const ExecContext& ctx, const MoePlan& plan, const MoeWeights& w, const MoeSettings& s,
                  const MoeBuffers& b, const Tensor& y) {
  const int64_t t = y.dim(0);
  const Tensor gate = b.shared_gate.Head(t);
  uint8_t* blocks = plan.hidden == Form::kBlocks ? b.rounded.Blocks(t, gate.dim(1), /*before=*/y.dim(1)) : nullptr;
  Swiglu(ctx, {.gate = gate, .up = b.shared_up.Head(t), .limit = s.limit, .y = gate, .y_blocks = blocks});
  QuantLinear(ctx, s.activation, {plan.hidden, gate, blocks}, {{w.shared.down, plan.down, y}}, b.rounded);
}

}  // namespace

bool FetchesExperts(const ExecContext& ctx, const MoePlan& plan, const MoeWeights& w, ActivationDtype activation,
                    int64_t num_choices) {
  const auto num_experts = static_cast<int64_t>(w.experts.size());
  return w.fetched != nullptr && !plan.shared_is_routed && num_choices >= 2 * num_experts &&
         ExpertsRunAsPrompt(ctx, w.experts.front(), activation, num_experts);
}

Activation Moe(const ExecContext& ctx, const MoePlan& plan, const MoeWeights& w, const MoeSettings& s,
               const Tensor& tokens, const Activation& rows, MoeBuffers& b, const Tensor& y, int64_t* site) {
  const int64_t t = rows.x.dim(0);
  const Routing routing = RoutingIn(plan, b, t);
  Activation x = rows;
  if (plan.by_tokens) {
    x = RouteOwnRows(ctx, plan, w, s, tokens, rows, b, routing, site);
  } else {
    Route(ctx, plan, w, s, tokens, rows, b, routing);
  }
  if (!plan.shared_is_routed) SharedExpert(ctx, plan, w, s, b, y);

  const Tensor outputs = b.outputs.Head(t * routing.slots());
  const bool leaves = plan.out == Form::kSlots || plan.out == Form::kSlotsForBridge;
  const ExpertWeights* table = w.table != nullptr ? w.table : w.experts.data();
  ExpertsArgs experts{.x = x.x,
                      .experts = routing.experts,
                      .weights = routing.weights,
                      .matrices = {table, w.experts.size() + (plan.shared_is_routed ? 1 : 0)},
                      .first = w.experts.front(),
                      .limit = s.limit,
                      .activation = s.activation,
                      .hidden = b.hidden.Head(t * routing.slots()),
                      .outputs = outputs,
                      .rounded_x = {b.rounded.data, DType::kF32, x.x.shape},
                      .shared = plan.shared_is_routed ? Tensor{} : y,
                      .y = leaves ? Tensor{} : y,
                      .always = routing.always,
                      .x_blocks = plan.experts_read_blocks ? x.blocks : nullptr};
  experts.sums_ranks = plan.out == Form::kRowParts && ExpertsSumRanks(ctx, experts);
  experts.site = *site;
  Experts(ctx, experts);
  if (experts.sums_ranks) {
    ++*site;
    return {Form::kRankRows, y, nullptr};
  }
  if (!leaves) return {plan.out, y, nullptr};
  return {plan.out, outputs.Reshaped({t, routing.slots(), y.dim(1)}), nullptr};
}

}  // namespace dsv4
