#include "model/deepseek_v4/pass/describe_plan.h"

#include <string>
#include <utility>

#include "layers/plan_table.h"
#include "ops/embed/embed.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/hc_head/hc_head.h"
#include "ops/hc_post/hc_post.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope_angles/rope_angles.h"

namespace dsv4::deepseek_v4 {

namespace {

std::string KindName(LayerKind kind) {
  return kind == LayerKind::kSliding ? "sliding" : kind == LayerKind::kCsa ? "CSA" : "HCA";
}

// Sets that a line may name instead of numbers.
std::vector<std::string> SetsOf(const Config& c, int64_t l) {
  std::vector<std::string> sets = {KindName(c.kind(l)), c.is_hash(l) ? "hash" : "learned"};
  if (c.kind(l) != LayerKind::kSliding) sets.emplace_back("CSA, HCA");
  if (l + 1 < c.num_layers) sets.emplace_back("all except the last");
  return sets;
}

// The output matrix.
std::vector<PlannedOp> DescribeHead(const ExecContext& ctx, const Model& m) {
  return DescribeBySteps("head", [&](StepClass step) {
    const ExecContext at = ContextOf(ctx, step);
    return DescribeLinearRun(at, step, m.weights.head, InputOf(at, m.modes.activation, m.weights.head));
  });
}

}  // namespace

std::vector<PlannedOp> DescribePlan(const ExecContext& ctx, const Model& m) {
  const auto num_layers = static_cast<int64_t>(m.weights.layers.size());
  std::vector<LayerPlans> plans;
  std::vector<PlannedLayer> layers;
  for (int64_t l = 0; l < num_layers; ++l) plans.push_back(PlanLayer(ctx, ShapeOfLayer(m, l)));
  for (int64_t l = 0; l < num_layers; ++l)
    layers.push_back({ShapeOfLayer(m, l), &plans[static_cast<size_t>(l)], SetsOf(m.config, l)});

  std::vector<PlannedOp> lines = {{"rope_angles", "", "all", DescribeRopeAngles(ctx).chosen},
                                  {"embed", "", "all", DescribeEmbed(ctx).chosen}};
  for (PlannedOp& line : DescribeLayers(ctx, layers)) lines.push_back(std::move(line));
  for (const OpImplementations& op :
       {DescribeHcPost(ctx), DescribeGatherRows(ctx), DescribeHcHead(ctx), DescribeRmsNorm(ctx)}) {
    lines.push_back({op.op, "", "all", op.chosen});
  }
  for (PlannedOp& line : DescribeHead(ctx, m)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace dsv4::deepseek_v4
