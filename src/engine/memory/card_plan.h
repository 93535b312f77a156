// What GPUs of common sizes would hold of a model, and how fast that might be: extrapolated from its sizes.
#pragma once

#include <vector>

#include "dsv4/engine.h"
#include "dsv4/inspect.h"
#include "model/model.h"

namespace dsv4 {

// For counts of GPUs that can divide the model.
std::vector<CardPlan> PlanCards(const EngineOptions& options, const ModelSource& source);

}  // namespace dsv4
