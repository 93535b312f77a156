#include "engine/setup/options.h"

#include <algorithm>

#include "base/env.h"
#include "base/str.h"
#include "base/thread_pool.h"
#include "device/cpu_features.h"
#include "device/device_list.h"
#include "ops/experts/experts.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxPrefillChunk = 1 << 16;
constexpr int64_t kHostPrefillChunk = 512;     // larger chunks are not faster on a CPU
constexpr int64_t kDevicePrefillChunk = 4096;  // below 2,048 a GPU's matrix units wait for weights
constexpr int kMaxThreads = 1024;
constexpr double kLeastExchangeTimeout = 0.001, kMaxExchangeTimeout = 86400;

// Options for one kind of device only, and the CPU's threads.
Status CheckDeviceOptions(const EngineOptions& o) {
  if (!NamesCpu(o.device) && o.reference_ops) {
    return InvalidArgument("reference implementations need the CPU: add --device cpu");
  }
  if (IsInteger(o.activation_dtype) && !NamesCpu(o.device)) {
    return InvalidArgument("--activation-dtype int8, int16 and int24 need the CPU: add --device cpu");
  }
  if (o.amx != AmxUse::kOff && (!NamesCpu(o.device) || !CpuHasAmx())) {
    return InvalidArgument(!NamesCpu(o.device)
                               ? "--amx needs the CPU: remove it, or add --device cpu"
                               : "--amx needs AMX tiles, which this CPU lacks or the system withholds: remove it");
  }
  if (o.num_threads < 0 || o.num_threads > kMaxThreads) {
    return InvalidArgument(StrCat("threads ", o.num_threads, ": from 1 to ", kMaxThreads, ", or 0 for one per core"));
  }
  if (NamesCpu(o.device) && o.pinning == Pinning::kOn) {
    const int cores = static_cast<int>(UsableCores().size());
    if (o.num_threads > cores) {
      return InvalidArgument(StrCat("cannot pin ", o.num_threads, " threads: this process may use ", cores, " core",
                                    cores == 1 ? "" : "s", "; use fewer threads, or no pinning"));
    }
  }
  return {};
}

// Options with a range.
Status CheckRanges(const EngineOptions& o) {
  if (o.prefill_chunk < 0 || o.prefill_chunk > kMaxPrefillChunk) {
    return InvalidArgument(StrCat("prefill chunk ", o.prefill_chunk, ": from 1 to ", kMaxPrefillChunk,
                                  " tokens, or 0 for the device's default"));
  }
  if (o.max_decode_rows < 1 || o.max_decode_rows > kMaxPrefillChunk) {
    return InvalidArgument(StrCat("decode rows of a pass ", o.max_decode_rows, ": from 1 to ", kMaxPrefillChunk));
  }
  if (o.max_context < 0) return InvalidArgument(StrCat("context limit ", o.max_context, ": at least 1, or 0"));
  return {};
}

Status CheckRanks(const EngineOptions& o) {
  const double s = o.ranks.collective_timeout_s;
  if (s != 0 && !(s >= kLeastExchangeTimeout && s <= kMaxExchangeTimeout)) {
    return InvalidArgument(StrCat("collective time-out ", s, " s: from ", kLeastExchangeTimeout, " to ",
                                  kMaxExchangeTimeout, ", or 0 for none"));
  }
  if (o.ranks.collectives_by_events && NamesCpu(o.device))
    return InvalidArgument("--collectives events needs GPUs: remove it, or add --device cuda");
  return {};
}

Status CheckDrafts(const DraftOptions& o) {
  if (o.tokens < 0 || o.tokens > kMaxDraftTokens) {
    return InvalidArgument(
        StrCat("draft tokens ", o.tokens, ": from 1 to ", kMaxDraftTokens, ", or 0 for the drafter's default"));
  }
  if (!(o.threshold <= 1)) return InvalidArgument(StrCat("draft threshold ", o.threshold, ": from 0 to 1"));
  return {};
}

// Limits of GPU memory, and the processor of offloaded experts.
Status CheckOffload(const EngineOptions& engine) {
  const OffloadOptions& o = engine.offload;
  const bool on_cpu = NamesCpu(engine.device), limited = o.gpu_memory > 0 || o.expert_slots > 0;
  for (const int64_t bytes : {o.gpu_memory, o.host_memory, o.kv_room}) {
    if (bytes >= 0 && bytes <= kMaxMemoryBytes) continue;
    return InvalidArgument(StrCat("GPU memory ", o.gpu_memory, ", host memory ", o.host_memory, ", room for KV ",
                                  o.kv_room, ": each must be 1 to ", kMaxMemoryBytes, " bytes, or 0"));
  }
  if (o.expert_slots < 0) return InvalidArgument(StrCat("expert slots ", o.expert_slots, ": at least 1, or 0 for all"));
  if (limited && on_cpu && engine.synthetic.shape.empty()) {
    return InvalidArgument("--gpu-memory and --expert-slots need a GPU: remove them, or add --device cuda");
  }
  if (o.expert_compute == ExpertCompute::kGpu) return {};
  if (on_cpu && !limited) {
    return InvalidArgument("--expert-compute needs a GPU: remove it, or add --device cuda");
  }
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> ranks, RankDevices(engine.device));
  if (ranks.size() > 1) {
    return InvalidArgument(StrCat("--expert-compute cpu and auto need one GPU, and ", engine.device, " has ",
                                  ranks.size(), " ranks; use one GPU, or --expert-compute gpu"));
  }
  if (engine.batch_invariant) {
    return InvalidArgument(
        "with --expert-compute cpu and auto, results depend on the placement of experts: batch-invariant results need "
        "--expert-compute gpu");
  }
  return {};
}

}  // namespace

Status CheckEngineOptions(const EngineOptions& o) {
  DSV4_RETURN_IF_ERROR(CheckDeviceOptions(o));
  DSV4_RETURN_IF_ERROR(CheckRanges(o));
  DSV4_RETURN_IF_ERROR(CheckRanks(o));
  DSV4_RETURN_IF_ERROR(CheckDrafts(o.drafts));
  return CheckOffload(o);
}

int64_t PrefillChunk(const EngineOptions& options) {
  const bool on_host = NamesCpu(options.device);
  const int64_t chunk = options.prefill_chunk > 0 ? options.prefill_chunk
                        : on_host                 ? kHostPrefillChunk
                                                  : kDevicePrefillChunk;
  if (on_host) return chunk;
  return std::min(chunk, kMaxTokensOnGpu);
}

int64_t ContextLimit(const EngineOptions& options, const ModelFacts& facts) {
  return options.max_context > 0 ? options.max_context : facts.max_positions;
}

int64_t LeastStepTokens(const EngineOptions& options, int64_t max_context) {
  const int64_t chunk = std::min(PrefillChunk(options), max_context);
  return NamesCpu(options.device) ? chunk : std::max({chunk, kMaxDecodeRows, options.max_decode_rows});
}

int64_t MostStepRows(const EngineOptions& options) { return std::max(kMaxDecodeRows, options.max_decode_rows); }

NumericsModes ModesOf(const EngineOptions& o) {
  return {.kv = o.kv_dtype, .index = o.index_dtype, .activation = o.activation_dtype};
}

std::string DescribeModes(const EngineOptions& o) {
  return StrCat("kv ", static_cast<int>(o.kv_dtype), ", index ", static_cast<int>(o.index_dtype), ", activations ",
                static_cast<int>(o.activation_dtype),
                NamesOneCpu(o.device) && !o.ranks.invariant ? std::string()
                : o.batch_invariant                         ? std::string(", batch-invariant")
                                    : StrCat(", prompt inputs ", static_cast<int>(o.prompt_inputs)),
                o.amx == AmxUse::kPrefill  ? ", tiles in prefill"
                : o.amx == AmxUse::kAlways ? ", tiles"
                                           : "",
                o.reference_ops ? ", reference ops" : "",
                o.offload.expert_compute == ExpertCompute::kGpu ? "" : ", experts of the host on the CPU");
}

std::unique_ptr<ThreadPool> MakePool(const EngineOptions& o, int count) {
  const std::vector<Core> cores = UsableCores();
  const auto num_cores = static_cast<int>(cores.size());
  const int threads = o.num_threads > 0 ? o.num_threads : num_cores;
  if (count > 1) return std::make_unique<ThreadPool>(std::max(1, threads / count));
  const bool wanted = o.pinning == Pinning::kOn || (o.pinning == Pinning::kAuto && NumNodes(cores) > 1);
  if (!NamesCpu(o.device) || !wanted || threads > num_cores || threads == 0)
    return std::make_unique<ThreadPool>(o.num_threads);
  return std::make_unique<ThreadPool>(PlaceThreads(cores, threads));
}

Result<std::vector<std::unique_ptr<Device>>> OpenDevices(const EngineOptions& o) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> names, RankDevices(o.device));
  std::vector<std::unique_ptr<Device>> devices;
  if (names.size() > 1) LoadKernelsAtOnce();
  for (const std::string& name : names) {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open(name));
    if (o.offload.gpu_memory > 0) device->LimitMemory(o.offload.gpu_memory);
    devices.push_back(std::move(device));
  }
  return devices;
}

RankPlaces PlacesOf(const EngineOptions& o, std::span<const std::unique_ptr<Device>> devices) {
  RankPlaces p{.count = static_cast<int>(devices.size())};
  const Device& first = *devices.front();
  const bool shares = p.count > 1 && devices[1]->index() == first.index();
  if (first.kind() == DeviceKind::kCpu || shares) p.sharing = p.count;
  if (first.kind() != DeviceKind::kCpu)
    p.transport = shares || o.ranks.collectives_by_events ? ExchangeTransport::kEvents : ExchangeTransport::kWords;
  for (const auto& device : devices) {
    const int64_t free = device->free_bytes();
    if (device == devices.front() || free < p.free_bytes) p.free_bytes = free, p.fullest = device->index();
  }
  return p;
}

// Ranks on the CPU wait for each other without limit: a thread that ends early reports it, and nothing else can delay
// one.
Result<std::unique_ptr<Exchange>> OpenExchange(const EngineOptions& o, const RankPlaces& places,
                                               std::span<const std::unique_ptr<Device>> devices, int64_t largest) {
  if (places.count == 1) return std::unique_ptr<Exchange>();
  if (places.transport == ExchangeTransport::kHost)
    return std::make_unique<Exchange>(places.count, ExchangeOptions{.timeout_s = 0});
  std::vector<ExchangeGpu> gpus;
  bool in_order = true;  // then messages name a rank by its GPU
  for (const auto& device : devices) {
    in_order = in_order && device->index() == static_cast<int>(gpus.size());
    gpus.push_back({.index = device->index(), .stream = device->Context(nullptr, false).stream});
  }
  const ExchangeRoom room = RoomForExchange(largest, places.count, places.transport);
  return OpenGpuExchange(gpus, places.transport,
                         {.timeout_s = o.ranks.collective_timeout_s,
                          .elements = room.elements,
                          .bulk = room.bulk,
                          .early = room.early,
                          .rank_name = in_order ? "GPU" : "rank"});
}

DraftModule DraftModuleOf(const EngineOptions& o) {
  switch (o.drafts.speculate) {
    case Speculate::kOff:
    case Speculate::kLookup:
      return DraftModule::kNone;
    case Speculate::kMtp:
      return DraftModule::kMtp;
    case Speculate::kDspark:
      return DraftModule::kDspark;
    case Speculate::kAuto:
      return DraftModule::kAny;
  }
  return DraftModule::kNone;
}

Result<std::unique_ptr<ModelSource>> OpenModelOf(const EngineOptions& o, const Device& device) {
  const bool synthetic = !o.synthetic.shape.empty();
  if (synthetic && !o.model_dir.empty()) {
    return InvalidArgument(StrCat("both a model folder (", o.model_dir, ") and a synthetic model (", o.synthetic.shape,
                                  ") were named; use one"));
  }
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<ModelSource> source,
                        synthetic
                            ? OpenSyntheticModel(o.synthetic, ModesOf(o), device, DraftModuleOf(o), o.tight_experts)
                            : OpenModel(o.model_dir, ModesOf(o), device, DraftModuleOf(o), o.tight_experts));
  if (const int64_t own = source->facts().max_positions; o.max_context > own) {
    return InvalidArgument(
        StrCat("--ctx is ", o.max_context, ", above the model's limit of ", own, " tokens; remove it, or lower it"));
  }
  if (o.ranks.invariant) source->SliceForAnyRanks();
  return source;
}

}  // namespace dsv4
