// A plan as lines that people read: which implementation takes an op, in which layers and steps.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dsv4/inspect.h"
#include "layers/plan.h"

namespace dsv4 {

struct OpLine {
  std::string op;    // "hc_bridge (attention)", "q_a"
  std::string runs;  // "TileLinearKernel, 2 x BF16; NVFP4"
};

// Of one layer and class of steps, in the order in which they run. Decode steps are taken to have one token of each
// sequence.
std::vector<OpLine> DescribeLayer(const ExecContext& ctx, StepClass step, const LayerShape& layer,
                                  const LayerPlan& plan);

// A layer with the names of sets that it belongs to, "CSA" or "hash".
struct PlannedLayer {
  LayerShape shape;
  const LayerPlans* plans = nullptr;
  std::vector<std::string> sets;
};

// Of all layers: what is alike is one line.
std::vector<PlannedOp> DescribeLayers(const ExecContext& ctx, std::span<const PlannedLayer> layers);

// What runs for a linear alone in steps of the class, whose context is `ctx`.
std::string DescribeLinearRun(const ExecContext& ctx, StepClass step, const QuantTensor& w, Input input);

// The lines of an op of no layer, by what runs in each class.
std::vector<PlannedOp> DescribeBySteps(const std::string& op, const std::function<std::string(StepClass)>& runs);

}  // namespace dsv4
