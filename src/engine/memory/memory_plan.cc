#include "engine/memory/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/available_memory.h"
#include "base/str.h"
#include "engine/decode/decode_steps.h"
#include "engine/drafts/device_round.h"
#include "engine/drafts/draft_chain.h"
#include "engine/drafts/drafted_steps.h"
#include "engine/ranks/idle_rows.h"
#include "engine/ranks/step_buffers.h"
#include "engine/setup/options.h"

namespace dsv4 {

namespace {

// Device memory that a rank of a running model uses in addition to weights, KV, collectives and the ops' scratch.
int64_t RunningBytes(const ModelSource& model, int64_t chunk, int64_t rows, const RankPlaces& places,
                     bool waits_for_choices) {
  const ModelFacts& facts = model.facts();
  return model.StepMemoryBytes(chunk, rows, places.count) + StepBuffers::Bytes(chunk) +
         IdleRows::Bytes(MakeKvLayout(facts.kv)) + DecodeSteps::Bytes(facts.vocab_size) +
         DeviceRound::Bytes(facts.vocab_size) +
         (facts.draft.module == DraftModule::kNone ? 0 : DraftChain::Bytes() + DraftedSteps::Bytes()) +
         RecordingBytes(facts.num_layers, places, waits_for_choices) + kUnplannedBytes;
}

// `limit` 0: no limit.
int64_t Limited(int64_t available, int64_t limit) {
  return limit > 0 && (available == 0 || limit < available) ? limit : available;
}

// For files on a CPU: how many of their bytes are not in memory, and how many of those a token is expected to read.
// Assumes that the data that every token needs is in memory, and that all experts are equally likely. Scratch memory of
// long contexts is left out: files may use it.
void PlanDisk(const ModelSizes& sizes, const ModelFacts& facts, MemoryPlan* plan) {
  if (sizes.mapped == 0 || plan->available_bytes == 0) return;
  const int64_t needed = NeededBytes(*plan, 0) - plan->scratch_bytes;
  plan->disk_bytes = std::clamp<int64_t>(needed - plan->available_bytes, 0, sizes.mapped);
  const int64_t each = std::accumulate(sizes.expert_bytes.begin(), sizes.expert_bytes.end(), int64_t{0});
  const int64_t experts = facts.num_experts * each, away = std::min(plan->disk_bytes, experts);
  if (experts == 0) return;
  const double chosen = static_cast<double>(facts.experts_per_token) / static_cast<double>(facts.num_experts);
  plan->disk_bytes_per_token = static_cast<double>(away) * chosen + static_cast<double>(plan->disk_bytes - away);
}

}  // namespace

int64_t NeededBytes(const MemoryPlan& p, int64_t page_bytes) {
  const int64_t running = p.activation_bytes + p.kv_fixed_bytes + page_bytes;
  return p.weight_bytes + p.widened_bytes + p.scratch_bytes + p.collective_bytes + std::max(running, p.loading_bytes);
}

KvBytes KvFootprint(const KvSpec& spec) {
  const KvLayout layout = MakeKvLayout(spec);
  int64_t rows_bytes = 0;  // of a page, without its alignment
  for (const LayerLayout& layer : layout.layers) {
    for (const CompressorLayout& c : {layer.main, layer.index}) rows_bytes += c.rows_per_page * c.row.row_bytes();
  }
  return {static_cast<double>(rows_bytes) / static_cast<double>(layout.page_tokens), layout.fixed_bytes};
}

MemoryPlan MakeMemoryPlan(const PlanInputs& inputs) {
  KvBytes kv = KvFootprint(inputs.kv);
  kv.per_token *= inputs.kv_copies;
  kv.fixed *= inputs.kv_copies;
  MemoryPlan plan{};
  plan.weight_bytes = inputs.weight_bytes;
  plan.widened_bytes = inputs.widened_bytes;
  plan.kv_bytes_per_1k_tokens = kv.per_token * 1000;
  plan.kv_fixed_bytes = kv.fixed;
  plan.activation_bytes = inputs.activation_bytes;
  plan.scratch_bytes = inputs.scratch_bytes;
  plan.loading_bytes = inputs.loading_bytes;
  plan.collective_bytes = inputs.collective_bytes;
  plan.available_bytes = inputs.available_bytes;
  plan.max_context = plan.max_context_that_fits = inputs.max_context;
  if (inputs.available_bytes == 0) return plan;
  const int64_t needed = inputs.weight_bytes + inputs.widened_bytes + inputs.activation_bytes + inputs.scratch_bytes +
                         inputs.collective_bytes + kv.fixed;
  const auto left = static_cast<double>(inputs.available_bytes - needed);
  if (left < 0) {
    plan.max_context_that_fits = 0;
  } else if (left < kv.per_token * static_cast<double>(inputs.max_context)) {
    plan.max_context_that_fits = static_cast<int64_t>(left / kv.per_token);
  }
  return plan;
}

int64_t RecordingBytes(int64_t num_layers, const RankPlaces& places, bool waits_for_choices) {
  const bool by_host = places.count > 1 && places.transport == ExchangeTransport::kEvents;
  return by_host || waits_for_choices ? 0 : num_layers * kRecordingBytesOfALayer;
}

int64_t LargestExchange(const EngineOptions& options, const ModelFacts& facts, int count) {
  const int64_t limit = ContextLimit(options, facts);
  return std::max(LeastStepTokens(options, limit) * facts.hidden_size,
                  MostStepRows(options) * facts.vocab_size / count);
}

MemoryPlan PlanMemory(const EngineOptions& options, const ModelSource& model, const PlannedDevice& device,
                      const RankPlaces& places) {
  const bool on_host = device.kind == DeviceKind::kCpu;
  const ModelFacts& facts = model.facts();
  const int64_t limit = ContextLimit(options, facts);
  const int64_t chunk = LeastStepTokens(options, limit), rows = MostStepRows(options), ranks = places.sharing;
  const int num_threads = options.num_threads > 0 ? options.num_threads : NumUsableCores();
  const ModelSizes sizes = model.Sizes(device.kind, places.count);
  const int64_t host_available = Limited(AvailableMemory(), options.offload.host_memory);
  const int64_t weights = on_host ? sizes.weights : ranks * sizes.weights;
  const ExchangeRoom room = RoomForExchange(LargestExchange(options, facts, places.count), places.count,
                                            places.transport);
  MemoryPlan plan = MakeMemoryPlan({
      .kv = facts.kv,
      .weight_bytes = weights,
      .widened_bytes = sizes.widened,
      .activation_bytes = ranks * (on_host ? model.StepMemoryBytes(chunk, rows, places.count)
                                           : RunningBytes(model, chunk, rows, places,
                                                          WaitsForChoices(options, sizes.experts_on_host,
                                                                          sizes.experts_on_disk))),
      .scratch_bytes = on_host ? ranks * model.HostScratchBytes(limit, std::max(1, num_threads / places.count))
                               : ranks * device.scratch_bytes,
      .loading_bytes = ranks * sizes.loading,
      .available_bytes = on_host ? Limited(host_available, options.offload.gpu_memory) : places.free_bytes,
      .max_context = limit,
      .collective_bytes = places.count == 1 ? 0 : ranks * ExchangeBytes(room, places.count, places.transport),
      .kv_copies = places.sharing,
  });
  plan.host_staging_bytes = sizes.host_staging;
  plan.experts = facts.num_layers * facts.num_experts;
  plan.experts_on_host = sizes.experts_on_host;
  plan.experts_on_disk = sizes.experts_on_disk;
  plan.disk_bytes = (on_host ? 1 : places.count) * sizes.disk_experts;
  plan.disk_bytes_per_token = (on_host ? 1 : places.count) * sizes.disk_bytes_per_token;
  plan.host_expert_bytes = (on_host ? 1 : places.count) * sizes.host_experts;
  plan.host_embedding_bytes = (on_host ? 1 : places.count) * sizes.host_embedding;
  plan.host_bytes_per_token = (on_host ? 1 : ranks) * sizes.host_bytes_per_token;
  plan.host_available_bytes = host_available;
  plan.device = device.name;
  plan.gpu = places.fullest;
  plan.ranks = places.sharing;
  plan.slices = model.fixed_slices();
  plan.devices = places.num_devices();
  PlanDisk(sizes, facts, &plan);
  return plan;
}

std::string PlaceOf(const MemoryPlan& p) {
  return p.devices > 1 ? StrCat("GPU ", p.gpu, " (", p.device, ")") : p.device;
}

bool Fits(const MemoryPlan& p, int64_t page_bytes) {
  return p.available_bytes == 0 || NeededBytes(p, page_bytes) <= p.available_bytes;
}

Status CheckPlan(const MemoryPlan& p, int64_t page_bytes, std::string_view remedy) {
  if (Fits(p, page_bytes)) return {};
  return ResourceExhausted(StrCat(
      "the model does not fit ", PlaceOf(p), ": weights ", p.weight_bytes + p.widened_bytes, " bytes + scratch of ops ",
      p.scratch_bytes, p.collective_bytes > 0 ? StrCat(" + collectives of ranks ", p.collective_bytes) : "",
      " + the larger of the loader's buffers, ", p.loading_bytes, ", and activations, ", p.activation_bytes,
      ", with one sequence's state, ", p.kv_fixed_bytes + page_bytes, " = ", NeededBytes(p, page_bytes), " bytes, ",
      p.available_bytes, " are free; ", remedy));
}

}  // namespace dsv4
