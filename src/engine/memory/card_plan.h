// The share of a model that fits GPUs of common sizes, and the expected speed, extrapolated from the model's sizes.
#pragma once

#include <vector>

#include "dsv4/engine.h"
#include "dsv4/inspect.h"
#include "model/model.h"

namespace dsv4 {

// For each number of GPUs that can divide the model.
std::vector<CardPlan> PlanCards(const EngineOptions& options, const ModelSource& source);

}  // namespace dsv4
