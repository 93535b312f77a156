// Engine::Load, Inspect and WriteSyntheticCheckpoint.
#include <utility>

#include "dsv4/inspect.h"
#include "engine/engine_impl.h"
#include "engine/memory/card_plan.h"
#include "engine/memory/host_experts.h"
#include "engine/memory/loader.h"
#include "engine/memory/memory_plan.h"
#include "engine/setup/options.h"
#include "engine/setup/thread_limit.h"
#include "model/model.h"
#include "ops/registry.h"

namespace dsv4 {

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  DSV4_RETURN_IF_ERROR(CheckEngineOptions(options));
  return WithinThreadLimit(options, [&]() -> Result<std::unique_ptr<Engine>> {
    DSV4_ASSIGN_OR_RETURN(Loaded loaded, LoadModel(options));
    auto engine = std::make_unique<EngineImpl>(loaded, options);
    DSV4_RETURN_IF_ERROR(engine->Start(std::move(loaded)));
    return std::unique_ptr<Engine>(std::move(engine));
  });
}

Status WriteSyntheticCheckpoint(const EngineOptions& options, const std::string& dir, const std::string& overflow) {
  DSV4_RETURN_IF_ERROR(CheckEngineOptions(options));
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Device>> devices, OpenDevices(options));
  const auto progress = [&options](int64_t done, int64_t total) {
    return !options.progress || options.progress({Progress::Phase::kWriting, done, total});
  };
  return WithinThreadLimit(options, [&] {
    const std::unique_ptr<ThreadPool> pool = MakePool(options);
    return WriteSyntheticModel(*devices.front(), *pool, options.synthetic, dir, overflow, progress);
  });
}

Result<ModelDescription> Inspect(const EngineOptions& options) {
  DSV4_RETURN_IF_ERROR(CheckEngineOptions(options));
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Device>> devices, OpenDevices(options));
  Device& device = *devices.front();
  const auto count = static_cast<int>(devices.size());
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<ModelSource> source, OpenModelOf(options, device));
  DSV4_RETURN_IF_ERROR(source->CheckRanks(count));

  ModelDescription d;
  d.info = InfoOf(source->facts(), options, count);
  d.config = source->DescribeConfig();
  d.formats = source->formats();
  d.files = source->files();
  const RankPlaces places = PlacesOf(options, devices);
  d.cards = PlanCards(options, *source);  // before experts are placed for this device
  d.plan = PlanMemory(options, *source, device, places);
  DSV4_RETURN_IF_ERROR(PlaceExperts(options, *source, device, places, &d.plan));
  ExecContext ctx = device.Context(nullptr, options.reference_ops);
  ctx.f32_inputs = options.activation_dtype == ActivationDtype::kF32;
  for (OpImplementations& op : ListOps(ctx))
    d.ops.push_back({std::move(op.op), std::move(op.chosen), std::move(op.candidates)});
  const RankView ranks{.count = count, .transport = PlacesOf(options, devices).transport};
  if (count > 1) ctx.ranks = &ranks;
  d.forward = source->DescribePlan(ctx, count);
  return d;
}

}  // namespace dsv4
