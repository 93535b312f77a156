// Loads a model from options: devices, memory plan, weights.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "dsv4/engine.h"
#include "engine/setup/device_fault.h"
#include "engine/setup/options.h"
#include "model/model.h"

namespace dsv4 {

// One device and one part of the model per rank; `exchange` is null for one rank.
struct Loaded {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<LoadedModel>> models;
  std::unique_ptr<Exchange> exchange;
  RankPlaces places;
  ModelInfo info;
  LoadTimes times;
  DeviceFault fault;  // requested by the environment
  bool experts_on_host = false, waits_for_choices = false;
};

// Errors as in Engine::Load. Nothing is allocated before the plan is known to fit.
Result<Loaded> LoadModel(const EngineOptions& options);

// `count`: the number of ranks.
ModelInfo InfoOf(const ModelFacts& facts, const EngineOptions& options, int count);

}  // namespace dsv4
