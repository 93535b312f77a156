#include "engine/memory/loader.h"

#include <algorithm>
#include <utility>

#include "base/env.h"
#include "base/stopwatch.h"
#include "base/str.h"
#include "engine/memory/host_experts.h"
#include "engine/memory/memory_plan.h"

namespace dsv4 {

namespace {

Speculate DrafterOf(const EngineOptions& options, DraftModule found) {
  if (found != DraftModule::kNone) return found == DraftModule::kMtp ? Speculate::kMtp : Speculate::kDspark;
  return options.drafts.speculate == Speculate::kOff ? Speculate::kOff : Speculate::kLookup;
}

// The remedy if the model does not fit. For a synthetic model: the largest number of layers that fits.
std::string Remedy(EngineOptions options, const Device& device, const RankPlaces& places, int64_t num_layers,
                   int64_t page_bytes) {
  const std::string limit = options.offload.gpu_memory > 0 ? "raise --gpu-memory (in bytes; 80G is 80 GiB), or " : "";
  if (options.synthetic.shape.empty())
    return limit + "use a smaller --prefill-chunk, close other programs, or use --device cpu";
  int64_t& layers = options.synthetic.num_layers;
  for (layers = num_layers - 1; layers > 0; --layers) {
    const auto source = OpenModelOf(options, device);
    if (source.ok() && Fits(PlanMemory(options, **source, device, places), page_bytes))
      return StrCat(limit, "use --layers ", layers);
  }
  return limit + "use a smaller --prefill-chunk or close other programs";
}

// On a CPU, files that do not fit are read page by page on demand. Memory of a GPU, or for synthetic weights, must be
// available.
Status CheckFits(const EngineOptions& options, const ModelSource& source, const Device& device,
                 const RankPlaces& places, const MemoryPlan& plan) {
  if (options.ranks.invariant && !plan.experts_on_host.empty()) {
    return Unsupported(StrCat("the model's experts do not all fit ", PlaceOf(plan),
                              ", and --rank-invariant "
                              "supports none in host memory; use more GPUs, or remove it"));
  }
  if (device.kind() == DeviceKind::kCpu && options.synthetic.shape.empty()) return {};
  const ModelFacts& facts = source.facts();
  const int64_t page_bytes = plan.ranks * MakeKvLayout(facts.kv).page_bytes;
  if (!Fits(plan, page_bytes))
    return CheckPlan(plan, page_bytes, Remedy(options, device, places, facts.num_layers, page_bytes));
  DSV4_RETURN_IF_ERROR(CheckKvRoom(options, facts, plan, device.kind()));
  return CheckHost(plan, device.kind(), /*from_files=*/options.synthetic.shape.empty());
}

}  // namespace

ModelInfo InfoOf(const ModelFacts& facts, const EngineOptions& options, int count) {
  const KvLayout kv = MakeKvLayout(facts.kv);
  return {.vocab_size = facts.vocab_size,
          .num_layers = facts.num_layers,
          .hidden_size = facts.hidden_size,
          .max_context = ContextLimit(options, facts),
          .bos_token_id = facts.bos_token_id,
          .eos_token_ids = facts.eos_token_ids,
          .unused_tensors = facts.unused_tensors,
          .skipped_tensors = facts.skipped_tensors,
          .weight_bytes = facts.weight_bytes,
          .kv_fixed_bytes = count * kv.fixed_bytes,
          .kv_bytes_per_token = static_cast<double>(count * kv.page_bytes) / static_cast<double>(kv.page_tokens),
          .unusable_draft = facts.unusable_draft};
}

std::string WarningOfSkipped(const ModelInfo& info) {
  constexpr size_t kShown = 3;
  const std::vector<std::string>& names = info.skipped_tensors;
  if (names.empty()) return {};
  std::string text = StrCat(names.size(), names.size() == 1 ? " tensor is" : " tensors are", " not used: ");
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += StrCat(i == 0 ? "" : ", ", names[i]);
  if (names.size() > kShown) text += ", ...";
  return text;
}

Result<Loaded> LoadModel(const EngineOptions& options) {
  Loaded out;
  const Stopwatch opening;
  DSV4_ASSIGN_OR_RETURN(out.devices, OpenDevices(options));
  Device& device = *out.devices.front();
  const auto count = static_cast<int>(out.devices.size());
  DSV4_ASSIGN_OR_RETURN(out.fault, ParseDeviceFault(EnvFailDeviceAfter(), count));
  out.times.open = opening.Seconds();
  const std::unique_ptr<ThreadPool> pool = MakePool(options);
  const PoolUse use(pool.get());
  const Stopwatch mapping;
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<ModelSource> source, OpenModelOf(options, device));
  out.times.map = options.synthetic.shape.empty() ? mapping.Seconds() : 0;
  DSV4_RETURN_IF_ERROR(source->CheckRanks(count));
  out.places = PlacesOf(options, out.devices);
  MemoryPlan plan = PlanMemory(options, *source, device, out.places);
  DSV4_RETURN_IF_ERROR(PlaceExperts(options, *source, device, out.places, &plan));
  if (plan.disk_bytes > 0) plan.disk_rate = source->MeasureReadRate();
  if (options.on_plan) options.on_plan(plan);
  DSV4_RETURN_IF_ERROR(CheckFits(options, *source, device, out.places, plan));
  DSV4_ASSIGN_OR_RETURN(
      out.exchange, OpenExchange(options, out.places, out.devices, LargestExchange(options, source->facts(), count)));
  const auto progress = [&options](int64_t done, int64_t total) {
    return !options.progress || options.progress({Progress::Phase::kLoading, done, total});
  };
  std::vector<Device*> of_ranks;
  for (const auto& rank : out.devices) of_ranks.push_back(rank.get());
  out.info = InfoOf(source->facts(), options, count);
  const int64_t read_ahead = plan.disk_bytes > 0 ? 0 : plan.available_bytes;
  DSV4_ASSIGN_OR_RETURN(out.models, source->Load(of_ranks, *pool, read_ahead, progress, &out.times));
  out.info.drafter = DrafterOf(options, out.models.front()->draft().module);
  const bool away = plan.host_expert_bytes > 0 || !plan.experts_on_disk.empty();
  if ((options.count_experts || away) && !out.models.front()->CountExperts(device))
    return ResourceExhausted(StrCat("no memory on ", device.place(), " for counters of experts; close other programs"));
  out.experts_on_host = plan.host_expert_bytes > 0;
  out.waits_for_choices = WaitsForChoices(options, plan.experts_on_host, plan.experts_on_disk);
  for (size_t r = 0; r < out.models.size() && away; ++r) {
    if (!out.models[r]->UseHostExperts(*out.devices[r], {options.offload.expert_compute, pool.get()}))
      return ResourceExhausted(StrCat("no memory on ", out.devices[r]->place(),
                                      " for the cache of offloaded experts; close other programs"));
  }
  return out;
}

}  // namespace dsv4
