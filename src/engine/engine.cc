#include "engine/engine_impl.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/str.h"
#include "device/cpu_features.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/bind.h"
#include "model/deepseek_v4/gpu_limits.h"
#include "model/deepseek_v4/plan.h"
#include "model/deepseek_v4/synthetic.h"
#include "model/deepseek_v4/synthetic_disk.h"
#include "model/deepseek_v4/upload.h"
#include "ops/experts/experts.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxPrefillChunk = 1 << 16;
constexpr int64_t kHostPrefillChunk = 512;     // beyond, the CPU gains nothing
constexpr int64_t kDevicePrefillChunk = 4096;  // below 2,048 a GPU's matrix units wait for weights
constexpr int64_t kDeviceExactChunk = 2048;    // float32 inputs of matrix products: what an op's scratch memory holds
constexpr int kMaxThreads = 1024;
constexpr int64_t kTileTokens = 8;  // from here on AMX tiles are faster than AVX-512 (docs/cpu.md)

}  // namespace

Status CheckEngineOptions(const EngineOptions& o) {
  if (o.device != "cpu" && o.reference_ops) {
    return InvalidArgument("reference implementations run on the CPU only; use --device cpu with them");
  }
  if (IsInteger(o.activation_dtype) && o.device != "cpu") {
    return InvalidArgument("integer activations run on the CPU only; use --device cpu with --activation-dtype int8, int16 or int24");
  }
  if (o.amx != AmxUse::kOff && (o.device != "cpu" || !CpuHasAmx())) {
    return InvalidArgument(o.device != "cpu" ? "AMX tiles belong to CPUs; leave --amx out on a GPU"
                                             : "this CPU has no AMX tiles, or the system keeps them from programs; leave --amx out");
  }
  if (o.num_threads < 0 || o.num_threads > kMaxThreads) {
    return InvalidArgument(StrCat("threads ", o.num_threads, ": from 1 to ", kMaxThreads, ", or 0 for one per core"));
  }
  if (o.device == "cpu" && o.pinning == Pinning::kOn) {
    const int cores = static_cast<int>(UsableCores().size());
    if (o.num_threads > cores) {
      return InvalidArgument(StrCat("cannot pin ", o.num_threads, " threads: this process may use ", cores, " core",
                                    cores == 1 ? "" : "s", "; use at most as many threads, or no pinning"));
    }
  }
  if (o.prefill_chunk < 0 || o.prefill_chunk > kMaxPrefillChunk) {
    return InvalidArgument(StrCat("prefill chunk ", o.prefill_chunk, ": from 1 to ", kMaxPrefillChunk,
                                  " tokens, or 0 for the device's own"));
  }
  if (o.max_context < 0) return InvalidArgument(StrCat("context limit ", o.max_context, ": at least 1, or 0"));
  return {};
}

int64_t PrefillChunk(const EngineOptions& options) {
  const bool on_host = options.device == "cpu";
  const int64_t chunk = options.prefill_chunk > 0 ? options.prefill_chunk : on_host ? kHostPrefillChunk : kDevicePrefillChunk;
  if (on_host) return chunk;
  return std::min(chunk, options.activation_dtype == ActivationDtype::kF32 ? kDeviceExactChunk : kMaxTokensOnGpu);
}

NumericsModes ModesOf(const EngineOptions& o) {
  return {.kv = o.kv_dtype, .index = o.index_dtype, .activation = o.activation_dtype};
}

ModelInfo MakeModelInfo(const Config& config, const EngineOptions& options, const BindReport& report) {
  const int64_t limit = options.max_context > 0 ? options.max_context : config.max_positions;
  const KvLayout kv = MakeKvLayout(MakeKvSpec(config, ModesOf(options)));
  return {.vocab_size = config.vocab_size, .num_layers = config.num_layers, .hidden_size = config.hidden_size,
          .max_context = std::min(limit, config.max_positions), .bos_token_id = config.bos_token_id,
          .eos_token_ids = config.eos_token_ids, .unused_tensors = report.unused_tensors,
          .weight_bytes = report.weight_bytes, .kv_fixed_bytes = kv.fixed_bytes,
          .kv_bytes_per_token = static_cast<double>(kv.page_bytes) / static_cast<double>(kv.page_tokens)};
}

// What the driver keeps for recorded steps. Measured: 2 MiB, its smallest piece, for a step of 6, of 4 and of 24 layers
// (`bench --first-token`); at most 6 MiB more for 6 sizes of batches of 8 layers.
constexpr int64_t kRecordingBytes = int64_t{64} << 20;

MemoryPlan PlanMemory(const EngineOptions& options, const Config& config, const Device& device, const Weights& weights,
                      const BindReport& report) {
  const bool on_host = device.kind() == DeviceKind::kCpu, synthetic = !options.synthetic.shape.empty();
  const int64_t limit = options.max_context > 0 ? std::min(options.max_context, config.max_positions) : config.max_positions;
  const int64_t chunk = std::min(PrefillChunk(options), limit);
  const int num_threads = options.num_threads > 0 ? options.num_threads : NumUsableCores();
  MemoryPlan plan = MakeMemoryPlan({
      .kv = MakeKvSpec(config, ModesOf(options)),
      .weight_bytes = on_host || synthetic ? report.weight_bytes : DeviceWeightBytes(weights),
      .widened_bytes = on_host ? report.widened_bytes : 0,
      .activation_bytes = Activations::Bytes(config, chunk, 1) + (on_host ? 0 : StepBuffers::Bytes(chunk, 1) + kRecordingBytes),
      .scratch_bytes = on_host ? HostScratchBytes(config, limit, num_threads) : device.scratch_bytes(),
      .loading_bytes = on_host || synthetic ? 0 : UploadStagingBytes(),
      .available_bytes = on_host ? AvailableMemory() : device.free_bytes(),
      .max_context = limit,
  });
  plan.host_staging_bytes = on_host || synthetic ? 0 : UploadStagingBytes();
  plan.device = device.name();
  return plan;
}

namespace {

struct Stopwatch {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
};

// Pinned where that was asked for, or where threads that wander would find their rows on another node.
std::unique_ptr<ThreadPool> MakePool(const EngineOptions& o) {
  const std::vector<Core> cores = UsableCores();
  const auto num_cores = static_cast<int>(cores.size());
  const int threads = o.num_threads > 0 ? o.num_threads : num_cores;
  const bool wanted = o.pinning == Pinning::kOn || (o.pinning == Pinning::kAuto && NumNodes(cores) > 1);
  if (o.device != "cpu" || !wanted || threads > num_cores || threads == 0) return std::make_unique<ThreadPool>(o.num_threads);
  return std::make_unique<ThreadPool>(PlaceThreads(cores, threads));
}

struct Loaded {
  Model model;
  ModelInfo info;
  LoadTimes times;
};

Result<Loaded> LoadFiles(const EngineOptions& options, Device& device, ThreadPool& pool,
                         const std::function<bool(int64_t, int64_t)>& progress) {
  const Stopwatch watch;
  DSV4_ASSIGN_OR_RETURN(Config config, LoadConfig(options.model_dir));
  if (device.kind() != DeviceKind::kCpu) DSV4_RETURN_IF_ERROR(CheckGpuLimits(config));
  DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const TensorSource> source, TensorSource::Open(options.model_dir));
  BindReport report;
  DSV4_ASSIGN_OR_RETURN(Weights weights, BindWeights(config, source, &report));
  Loaded out{.model = {}, .info = MakeModelInfo(config, options, report), .times = {}};
  out.times.map = watch.Seconds();
  const MemoryPlan plan = PlanMemory(options, config, device, weights, report);
  out.model = MakeModel(std::move(config), std::move(weights), ModesOf(options));
  if (device.kind() != DeviceKind::kCpu) {
    if (options.on_plan) options.on_plan(plan);
    DSV4_RETURN_IF_ERROR(CheckPlan(plan, out.model.kv_layout.page_bytes, "use a smaller --prefill-chunk, close other programs, or use --device cpu"));
    DSV4_ASSIGN_OR_RETURN(out.model.weights,
                          UploadWeights(device, pool, out.model.weights, source.get(), progress, &out.times));
    return out;
  }
  if (options.on_plan) options.on_plan(plan);  // what does not fit is read as its pages are needed
  const Stopwatch reading;
  if (source->num_bytes() < plan.available_bytes) {
    if (!source->Preload(&pool, progress)) return Cancelled("loading was cancelled");
    out.times.bytes = source->num_bytes();
  }
  out.times.read = reading.Seconds();
  return out;
}

struct SyntheticPlan {
  Config config;
  BindReport report;
  MemoryPlan memory;
  int64_t page_bytes;  // of KV
};

Result<SyntheticPlan> PlanSynthetic(const EngineOptions& options, const Device& device) {
  SyntheticPlan p = {};
  DSV4_ASSIGN_OR_RETURN(p.config, SyntheticConfig(options.synthetic));
  p.report.weight_bytes = SyntheticWeightBytes(device, p.config, options.synthetic);
  p.memory = PlanMemory(options, p.config, device, {}, p.report);
  p.page_bytes = MakeKvLayout(MakeKvSpec(p.config, ModesOf(options))).page_bytes;
  return p;
}

// What to do where a synthetic model of `num_layers` layers does not fit: take as many as do.
std::string RemedyForLayers(EngineOptions options, const Device& device, int64_t num_layers) {
  int64_t& layers = options.synthetic.num_layers;
  for (layers = num_layers - 1; layers > 0; --layers) {
    const Result<SyntheticPlan> plan = PlanSynthetic(options, device);
    if (plan.ok() && Fits(plan->memory, plan->page_bytes)) return StrCat("use --layers ", layers);
  }
  return "use a smaller --prefill-chunk or close other programs";
}

Result<Loaded> MakeSynthetic(const EngineOptions& options, Device& device, ThreadPool& pool,
                             const std::function<bool(int64_t, int64_t)>& progress) {
  if (!options.model_dir.empty()) {
    return InvalidArgument(StrCat("both a model folder (", options.model_dir, ") and a synthetic model (",
                                  options.synthetic.shape, ") were named; use one"));
  }
  DSV4_ASSIGN_OR_RETURN(SyntheticPlan plan, PlanSynthetic(options, device));
  if (options.on_plan) options.on_plan(plan.memory);
  if (!Fits(plan.memory, plan.page_bytes)) {
    return CheckPlan(plan.memory, plan.page_bytes, RemedyForLayers(options, device, plan.config.num_layers));
  }
  const Stopwatch making;
  DSV4_ASSIGN_OR_RETURN(Weights weights, SyntheticWeights(device, pool, plan.config, options.synthetic, progress));
  Loaded out{.model = {}, .info = MakeModelInfo(plan.config, options, plan.report), .times = {}};
  out.times.read = making.Seconds();
  out.model = MakeModel(std::move(plan.config), std::move(weights), ModesOf(options));
  return out;
}

// Everything among the options that may change a row's bits.
std::string DescribeModes(const EngineOptions& o) {
  return StrCat("kv ", static_cast<int>(o.kv_dtype), ", index ", static_cast<int>(o.index_dtype), ", activations ",
                static_cast<int>(o.activation_dtype), o.batch_invariant ? ", batch-invariant" : "",
                o.amx == AmxUse::kPrefill ? ", tiles in prefill" : o.amx == AmxUse::kAlways ? ", tiles" : "",
                o.reference_ops ? ", reference ops" : "");
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  DSV4_RETURN_IF_ERROR(CheckEngineOptions(options));
  const Stopwatch opening;
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open(options.device));
  const double open_seconds = opening.Seconds();
  std::unique_ptr<ThreadPool> pool = MakePool(options);
  const PoolUse use(pool.get());
  const auto progress = [&options](int64_t done, int64_t total) {
    return !options.progress || options.progress({Progress::Phase::kLoading, done, total});
  };
  DSV4_ASSIGN_OR_RETURN(Loaded loaded, options.synthetic.shape.empty() ? LoadFiles(options, *device, *pool, progress)
                                                                        : MakeSynthetic(options, *device, *pool, progress));
  auto engine = std::make_unique<EngineImpl>(std::move(device), std::move(pool), std::move(loaded.model),
                                             std::move(loaded.info), options);
  loaded.times.open = open_seconds;
  engine->set_load_times(loaded.times);
  return std::unique_ptr<Engine>(std::move(engine));
}

Status WriteSyntheticCheckpoint(const EngineOptions& options, const std::string& dir) {
  DSV4_RETURN_IF_ERROR(CheckEngineOptions(options));
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, Device::Open(options.device));
  const std::unique_ptr<ThreadPool> pool = MakePool(options);
  return WriteSyntheticModel(*device, *pool, options.synthetic, dir, [&options](int64_t done, int64_t total) {
    return !options.progress || options.progress({Progress::Phase::kWriting, done, total});
  });
}

int64_t EngineImpl::free_bytes() const {
  return device_->kind() == DeviceKind::kCpu ? AvailableMemory() : device_->free_bytes();
}

EngineImpl::EngineImpl(std::unique_ptr<Device> device, std::unique_ptr<ThreadPool> pool, Model model, ModelInfo info,
                       const EngineOptions& options)
    : memory_(std::make_shared<SequenceMemory>(std::move(device), model.kv_layout)), device_(memory_->device.get()),
      pool_(std::move(pool)), model_(std::move(model)), info_(std::move(info)),
      prefill_chunk_(PrefillChunk(options)),
      modes_(DescribeModes(options)),
      ctx_(device_->Context(pool_.get(), options.reference_ops)),
      step_buffers_(*device_) {
  memory_->engine = this;
  ctx_.f32_inputs = options.activation_dtype == ActivationDtype::kF32;
  ctx_.batch_invariant = options.batch_invariant;
  amx_ = options.amx;
}

Result<std::unique_ptr<Session>> EngineImpl::NewSession() {
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> cache, SequenceCache::Create(memory_->kv));
  return std::unique_ptr<Session>(new SessionImpl(*this, memory_, std::move(cache)));
}

Status EngineImpl::Check(const SessionImpl& session, std::span<const TokenId> tokens) const {
  if (tokens.empty()) return InvalidArgument("no tokens to process: pass at least one");
  for (const TokenId id : tokens) {
    if (id < 0 || id >= info_.vocab_size) {
      return InvalidArgument(StrCat("token id ", id, " is outside the model's vocabulary of ", info_.vocab_size));
    }
  }
  const int64_t length = static_cast<int64_t>(session.tokens().size() + tokens.size());
  if (length > info_.max_context) {
    return ResourceExhausted(StrCat(length, " tokens exceed the context limit of ", info_.max_context,
                                    "; shorten the prompt or raise the limit (--ctx) up to the model's own"));
  }
  return {};
}

Status EngineImpl::Step(std::span<const StepItem> items) {
  try {
    std::vector<Part>& parts = parts_;
    parts.clear();
    for (const StepItem& item : items) {
      if (item.session == nullptr) return InvalidArgument("a step item has no session");
      auto* session = dynamic_cast<SessionImpl*>(item.session);
      if (session == nullptr || &session->engine() != this) {
        return InvalidArgument("a step item's session belongs to another engine");
      }
      for (const Part& other : parts) {
        if (other.session == session) return InvalidArgument("a session appears twice in one step");
      }
      DSV4_RETURN_IF_ERROR(Check(*session, item.tokens));
      if (item.rows != LogitRows::kNone && item.logits == nullptr) {
        return InvalidArgument("a step item asks for logits but gives no place for them");
      }
      parts.push_back({.session = session, .tokens = item.tokens, .rows = item.rows, .logits = nullptr});
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].rows == LogitRows::kNone) continue;
      const size_t rows = parts[i].rows == LogitRows::kAll ? parts[i].tokens.size() : 1;
      items[i].logits->resize(rows * static_cast<size_t>(info_.vocab_size));
      parts[i].logits = items[i].logits->data();
    }
    return Run();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for this step; use a smaller prefill chunk or fewer sequences");
  }
}

Status EngineImpl::RunPart(const Part& part) {
  parts_.assign(1, part);
  return Run();
}

Status EngineImpl::Run() {
  std::vector<Part>& parts = parts_;
  const PoolUse use(pool_.get());
  try {
    // Everything that a pass needs, for the largest pass, before the first one: no failure half-way.
    const int64_t budget = std::max<int64_t>(prefill_chunk_, static_cast<int64_t>(parts.size()));
    int64_t total = 0, rows = 0;
    for (const Part& part : parts) {
      const auto n = static_cast<int64_t>(part.tokens.size());
      DSV4_RETURN_IF_ERROR(part.session->cache().Reserve(static_cast<int64_t>(part.session->tokens().size()) + n));
      part.session->ReserveTokens(part.tokens.size());
      total += n;
      rows += part.rows == LogitRows::kAll ? n : part.rows == LogitRows::kLast ? 1 : 0;
    }
    EnsureActivations(std::min(total, budget), std::min(rows, budget));
    while (!parts.empty()) DSV4_RETURN_IF_ERROR(RunPass(budget));
    return {};
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for this step; use a smaller prefill chunk or fewer sequences");
  }
}

void EngineImpl::EnsureActivations(int64_t max_tokens, int64_t max_rows) {
  if (device_->kind() != DeviceKind::kCpu) {  // recordings name addresses: as few changes as possible
    max_tokens = std::max(max_tokens, std::min(prefill_chunk_, info_.max_context));
    max_rows = std::max<int64_t>(max_rows, 1);
  }
  if (activations_ && activations_->max_tokens() >= max_tokens && activations_->max_rows() >= max_rows) return;
  const int64_t tokens = std::max(max_tokens, activations_ ? activations_->max_tokens() : 0);
  const int64_t rows = std::max(max_rows, activations_ ? activations_->max_rows() : 0);
  decode_steps_.clear();
  decode_loops_.clear();
  decode_draws_.clear();
  activations_.reset();
  activations_ = std::make_unique<Activations>(model_.config, tokens, rows, device_);
  step_buffers_.Reserve(tokens, rows);
}

bool EngineImpl::UsesTiles(int64_t num_tokens) const {
  return amx_ == AmxUse::kAlways || (amx_ == AmxUse::kPrefill && num_tokens >= kTileTokens);
}

void EngineImpl::RunForward() {
  const int64_t t = step_.num_tokens(), rows = static_cast<int64_t>(step_.logit_rows.size());
  const StepView view = step_buffers_.Place(step_);
  ctx_.tiles = UsesTiles(t);
  const auto forward = [&] { Forward(ctx_, model_, view, *activations_, activations_->logits.Head(rows)); };
  // One token for every sequence, with its logits: the same kernels at the same addresses whatever the positions.
  const bool records = device_->kind() != DeviceKind::kCpu;
  if (records && static_cast<int64_t>(step_.sequences.size()) == t && rows == t && t <= StepBuffers::kSmallStep) {
    std::unique_ptr<Recording>& recording = decode_steps_[t];
    if (recording == nullptr) recording = device_->Record(forward);
    if (recording != nullptr) {
      recording->Launch();
      return;
    }
  }
  forward();
}

Status EngineImpl::RunPass(int64_t budget) {
  std::vector<Part>& parts = parts_;
  step_.Clear();
  // Every sequence gets at least one token; the rest of the budget goes to them in order.
  int64_t spare = budget - static_cast<int64_t>(parts.size());
  int64_t num_wanted = 0;
  for (Part& part : parts) {
    const int64_t take = std::min(static_cast<int64_t>(part.tokens.size()), 1 + spare);
    spare -= take - 1;
    part.taken = take;
    const int64_t begin = step_.num_tokens(), start = static_cast<int64_t>(part.session->tokens().size());
    for (int64_t i = 0; i < take; ++i) {
      step_.tokens.push_back(part.tokens[static_cast<size_t>(i)]);
      step_.positions.push_back(start + i);
      step_.sequence_of.push_back(static_cast<int32_t>(step_.sequences.size()));
    }
    step_.sequences.push_back(part.session->cache().View(start, begin, begin + take));
    const bool last = take == static_cast<int64_t>(part.tokens.size());
    const int64_t num_rows = part.rows == LogitRows::kAll ? take : part.rows == LogitRows::kLast && last ? 1 : 0;
    part.first_row = static_cast<int64_t>(step_.logit_rows.size());
    part.num_rows = num_rows;
    num_wanted += num_rows;
    for (int64_t i = take - num_rows; i < take; ++i) step_.logit_rows.push_back(static_cast<int32_t>(begin + i));
  }

  RunForward();
  const int64_t v = info_.vocab_size;
  for (Part& part : parts) {
    if (part.num_rows == 0) continue;
    const int64_t count = part.num_rows * v;
    device_->Download(part.logits, activations_->logits.f32() + part.first_row * v, count * 4);
    part.logits += count;
  }
  if (num_wanted == 0 || device_->kind() != DeviceKind::kCpu) DSV4_RETURN_IF_ERROR(device_->Synchronize());
  for (Part& part : parts) {
    part.session->Commit(part.tokens.first(static_cast<size_t>(part.taken)));
    part.tokens = part.tokens.subspan(static_cast<size_t>(part.taken));
  }
  std::erase_if(parts, [](const Part& part) { return part.tokens.empty(); });
  return {};
}

Status SessionImpl::Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                           const ProgressFn& progress) {
  DSV4_RETURN_IF_ERROR(engine_->Check(*this, tokens));
  if (rows != LogitRows::kNone && logits == nullptr) return InvalidArgument("no place for the logits");
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t v = engine_->info().vocab_size;
  const int64_t num_rows = rows == LogitRows::kAll ? total : rows == LogitRows::kLast ? 1 : 0;
  try {
    if (num_rows > 0) logits->resize(static_cast<size_t>(num_rows * v));
  } catch (const std::exception&) {
    return ResourceExhausted(StrCat("no memory for ", num_rows, " rows of logits"));
  }
  for (int64_t done = 0; done < total;) {
    const int64_t n = std::min(engine_->prefill_chunk(), total - done);
    const bool last = done + n == total;
    EngineImpl::Part part{.session = this, .tokens = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(n)),
                          .rows = rows == LogitRows::kLast && !last ? LogitRows::kNone : rows, .logits = nullptr};
    if (part.rows != LogitRows::kNone) part.logits = logits->data() + (rows == LogitRows::kAll ? done * v : 0);
    DSV4_RETURN_IF_ERROR(engine_->RunPart(part));
    done += n;
    if (progress && !progress({Progress::Phase::kPrefill, done, total}) && done < total) {
      return Cancelled(StrCat("stopped after ", done, " of ", total, " tokens"));
    }
  }
  return {};
}

void SessionImpl::Reset() {
  tokens_.clear();
  cache_->Reset();
}

}  // namespace dsv4
