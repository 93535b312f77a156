#include "layers/moe.h"

#include <functional>

#include "layers/linear.h"
#include "layers/plan.h"
#include "layers/slices.h"
#include "ops/gather_shares/gather_shares.h"
#include "ops/router/router.h"
#include "ops/stream_add/stream_add.h"
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

// The experts at hand: all that a rank has of them, or a slice.
struct ExpertsOf {
  const ExpertWeights* table;
  const ExpertWeights& first;
  const ExpertWeights& shared;
  size_t count;  // routed ones
};

template <typename W>
ExpertsOf AtHand(const W& w) {
  return {w.table != nullptr ? w.table : w.experts.data(), w.experts.front(), w.shared, w.experts.size()};
}

// Whether the shared expert's first two matrices take their input in the router's launch.
bool SharedGoesAlong(const MoePlan& plan) { return !plan.shared_is_routed && !plan.by_tokens && !plan.sliced; }

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
  } else if (!SharedGoesAlong(plan)) {
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
  const bool alone = ctx.ranks == nullptr || ctx.ranks->count == 1;
  Activation all = x.x;
  GatherSharesArgs inputs{.site = *site};
  if (plan.gathered == Form::kBlocks) {
    all = {Form::kBlocks, {nullptr, DType::kF32, x.x.shape}, alone ? x.blocks : b.rounded.Blocks(t, d)};
    inputs.AddBlocks(x.blocks, all.blocks, t, d);
  } else {
    inputs.AddRows(ctx, x.x);
  }
  SendShares(ctx, inputs);
  if (own.end > own.begin) {
    Route(ctx, plan, w, s, of_own(tokens), {x.form, of_own(x.x), x.blocks}, b,
          {of_own(to.experts), of_own(to.weights), to.always});
  }
  // What was not sent goes with the choices.
  GatherSharesArgs choices = inputs.sent ? GatherSharesArgs{.site = *site} : inputs;
  choices.AddRows(ctx, to.experts);
  choices.AddRows(ctx, to.weights);
  if (inputs.sent) GatherShares(ctx, inputs);
  GatherShares(ctx, choices);
  *site += ShareExchanges(ctx, choices);
  return all;
}

// y = the shared expert of x, from gate and up on where the router's launch has made them.
void SharedExpert(const ExecContext& ctx, const MoePlan& plan, const ExpertsOf& w, const MoeSettings& s,
                  const Activation& x, const MoeBuffers& b, const Tensor& y) {
  const int64_t t = y.dim(0);
  const Tensor gate = b.shared_gate.Head(t), up = b.shared_up.Head(t);
  if (!SharedGoesAlong(plan))
    QuantLinear(ctx, s.activation, x, {{w.shared.gate, plan.gate, gate}, {w.shared.up, plan.up, up}}, b.rounded);
  uint8_t* blocks = plan.hidden == Form::kBlocks ? b.rounded.Blocks(t, gate.dim(1), /*before=*/y.dim(1)) : nullptr;
  Swiglu(ctx, {.gate = gate, .up = up, .limit = s.limit, .y = gate, .y_blocks = blocks});
  QuantLinear(ctx, s.activation, {plan.hidden, gate, blocks}, {{w.shared.down, plan.down, y}}, b.rounded);
}

// Whether the outputs of the slots leave as they are, for the next bridge to add up.
bool LeavesSlots(const MoePlan& plan) { return plan.out == Form::kSlots || plan.out == Form::kSlotsForBridge; }

// What the experts at hand make of x, of the shape that the plan says: y or, of slots, b.outputs.
ExpertsArgs RoutedExperts(const MoePlan& plan, const ExpertsOf& w, const MoeSettings& s, const Activation& x,
                          const Routing& routing, const MoeBuffers& b, const Tensor& y) {
  const int64_t slots = x.x.dim(0) * routing.slots();
  return {.x = x.x,
          .experts = routing.experts,
          .weights = routing.weights,
          .matrices = {w.table, w.count + (plan.shared_is_routed ? 1 : 0)},
          .first = w.first,
          .limit = s.limit,
          .activation = s.activation,
          .hidden = b.hidden.Head(slots),
          .outputs = b.outputs.Head(slots),
          .rounded_x = {b.rounded.data, DType::kF32, x.x.shape},
          .shared = plan.shared_is_routed ? Tensor{} : y,
          .y = LeavesSlots(plan) ? Tensor{} : y,
          .always = routing.always,
          .x_blocks = plan.experts_read_blocks ? x.blocks : nullptr};
}

// y where the partner has taken some of the choices: the device computes those that are left meanwhile.
Activation WithPartner(const ExecContext& ctx, const MoePlan& plan, const MoeWeights& w, const MoeSettings& s,
                       const Activation& x, const Routing& left, const MoeBuffers& b, const Tensor& y) {
  const int64_t t = y.dim(0);
  const ExpertsOf all = AtHand(w);
  if (!plan.shared_is_routed) SharedExpert(ctx, plan, all, s, x, b, y);
  if (left.slots() > 0) {
    MoePlan floats = plan;
    floats.out = Form::kFloats;
    Experts(ctx, RoutedExperts(floats, all, s, x, left, b, y));
  }
  const Tensor sums = b.outputs.Head(t);
  w.partner->Compute(ctx, s, sums);
  StreamAdd(ctx, {.y = sums, .streams = y.Reshaped({t, 1, y.dim(1)})});
  return {Form::kFloats, y, nullptr};
}

}  // namespace

bool FetchesExperts(const MoePlan& plan, const MoeWeights& w, int64_t num_choices) {
  return w.fetched != nullptr && plan.fetch_from > 0 && num_choices >= plan.fetch_from;
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
  if (w.supply != nullptr) w.supply->Bring(ctx, routing.experts);
  if (ExpertPartner::Left left;
      w.partner != nullptr && w.partner->Take(ctx, x.x, routing.experts, routing.weights, &left))
    return WithPartner(ctx, plan, w, s, x, {left.experts, left.weights, routing.always}, b, y);
  if (plan.sliced) {
    const auto make = [&](int k, const Tensor& part) {
      const ExpertsOf slice = AtHand(w.slices[static_cast<size_t>(k)]);
      if (!plan.shared_is_routed) SharedExpert(ctx, plan, slice, s, x, b, part);
      Experts(ctx, RoutedExperts(plan, slice, s, x, routing, b, part));
    };
    SumSlices(ctx, static_cast<int>(w.slices.size()), b.sums, y, std::cref(make));  // a function that allocates nothing
    return {plan.out, y, nullptr};
  }
  const ExpertsOf all = AtHand(w);
  if (!plan.shared_is_routed) SharedExpert(ctx, plan, all, s, x, b, y);
  ExpertsArgs experts = RoutedExperts(plan, all, s, x, routing, b, y);
  if (FetchesExperts(plan, w, t * routing.slots())) experts.fetched = w.fetched;
  experts.sums_ranks = plan.out == Form::kRowParts && ExpertsSumRanks(ctx, experts);
  experts.site = *site;
  Experts(ctx, experts);
  if (experts.sums_ranks) {
    ++*site;
    return {Form::kRankRows, y, nullptr};
  }
  if (!LeavesSlots(plan)) return {plan.out, y, nullptr};
  return {plan.out, experts.outputs.Reshaped({t, routing.slots(), y.dim(1)}), nullptr};
}

}  // namespace dsv4
