// From options to a model in memory: devices, plan, weights.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "dsv4/engine.h"
#include "engine/setup/device_fault.h"
#include "engine/setup/options.h"
#include "model/model.h"

namespace dsv4 {

// A device and a part of the model for each rank; `exchange` is null for one.
struct Loaded {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<LoadedModel>> models;
  std::unique_ptr<Exchange> exchange;
  RankPlaces places;
  ModelInfo info;
  LoadTimes times;
  DeviceFault fault;  // that the environment asks for
  bool experts_on_host = false, waits_for_choices = false;
};

// Errors as of Engine::Load; nothing is allocated before the plan is known to fit.
Result<Loaded> LoadModel(const EngineOptions& options);

// Of `count` ranks.
ModelInfo InfoOf(const ModelFacts& facts, const EngineOptions& options, int count);

}  // namespace dsv4
