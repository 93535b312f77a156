#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "base/available_memory.h"
#include "base/str.h"
#include "engine/engine_impl.h"
#include "engine/memory/memory_plan.h"
#include "engine/sessions/check_ranks.h"
#include "engine/sessions/snapshot.h"
#include "engine/sessions/snapshot_file.h"
#include "engine/setup/options.h"

namespace dsv4 {

namespace {

EngineOptions WithoutCalls(EngineOptions options) {
  options.progress = {};
  options.on_plan = {};
  return options;
}

// For logits in memory of the caller.
Status CheckRoom(LogitRows rows, int64_t tokens, int64_t vocab, size_t given) {
  const int64_t num_rows = rows == LogitRows::kAll ? tokens : rows == LogitRows::kLast ? 1 : 0;
  if (given == static_cast<size_t>(num_rows * vocab)) return {};
  return InvalidArgument(StrCat("there is room for ", given, " floats of logits, and ", num_rows, " rows of ", vocab,
                                " have ", num_rows * vocab, "; give exactly that many"));
}

Status NoMemoryForStep() {
  return ResourceExhausted("no memory for this step; use a smaller prefill chunk or fewer sequences");
}

std::unique_ptr<Ranks> MakeRanks(const SequenceMemory& memory, std::vector<std::unique_ptr<LoadedModel>> models,
                                 std::unique_ptr<Exchange> exchange, const RankPlaces& places, const ModelInfo& info,
                                 const EngineOptions& options, const DeviceFault& fault, bool waits_for_choices) {
  std::vector<Ranks::Rank> ranks;
  for (size_t r = 0; r < models.size(); ++r) {
    std::unique_ptr<ThreadPool> pool = MakePool(options, places.count);
    auto runner = std::make_unique<Runner>(*memory.devices[r], *pool, std::move(models[r]), options, info.max_context,
                                           RecordingBytes(info.num_layers, places, waits_for_choices));
    if (fault.rank < 0 || fault.rank == static_cast<int>(r)) runner->FailAfter(fault);
    ranks.push_back({std::move(pool), std::move(runner)});
  }
  return std::make_unique<Ranks>(std::move(ranks), std::move(exchange));
}

}  // namespace

EngineImpl::EngineImpl(const Loaded& loaded, const EngineOptions& options)
    : options_(WithoutCalls(options)),
      info_(loaded.info),
      kv_layout_(loaded.models.front()->kv_layout()),
      prefill_chunk_(PrefillChunk(options)),
      places_(loaded.places),
      drafting_(options.drafts) {}

EngineImpl::~EngineImpl() { CloseDevices({}); }

Status EngineImpl::Start(Loaded loaded) {
  load_times_ = loaded.times;
  if (loaded.experts_on_host) repicker_.TurnOn();
  memory_ = std::make_shared<SequenceMemory>(std::move(loaded.devices), kv_layout_);
  memory_->owner = this;
  memory_->fingerprint = fingerprint_;
  ranks_ = MakeRanks(*memory_, std::move(loaded.models), std::move(loaded.exchange), places_, info_, options_,
                     loaded.fault, loaded.waits_for_choices);
  decode_steps_ = std::make_unique<RankDecodeSteps>(*ranks_, info_.vocab_size);
  device_round_ = std::make_unique<DeviceRound>(*decode_steps_, info_);
  drafted_steps_ = std::make_unique<RankDraftedSteps>(*decode_steps_, info_.vocab_size);
  drafting_.UseModule(*ranks_, info_.vocab_size);
  try {
    if (runner().on_host()) return {};
    ranks_->Reserve(1, 1);
    DSV4_RETURN_IF_ERROR(device_round_->Reserve());
    DSV4_RETURN_IF_ERROR(decode_steps_->Reserve());
    return MeasureDrafts();
  } catch (const std::bad_alloc&) {
    return NoMemoryForStep();
  }
}

// Sums over all ranks, like the bytes of sequences. If each rank has a GPU, the GPU with the least free memory counts
// for all: it is full first.
int64_t EngineImpl::free_bytes() const {
  if (ranks_ == nullptr) return 0;
  if (runner().on_host()) return AvailableMemory() + memory_->bytes_kept();
  int64_t least = memory_->device().free_bytes();
  for (const auto& device : memory_->devices) least = std::min(least, device->free_bytes());
  return places_.num_devices() * least + memory_->bytes_kept();
}

Result<ExpertUse> EngineImpl::expert_use() {
  DSV4_ASSIGN_OR_RETURN(ExpertUse use, runner().model().UseOfExperts(runner().device()));
  // on GPUs each rank has its slices of the same experts in host memory
  const int copies = runner().on_host() ? 1 : ranks_->count();
  use.host_bytes *= copies;
  use.fetched_bytes *= copies;
  use.moved_bytes *= copies;
  use.disk_bytes *= copies;
  return use;
}

Result<double> EngineImpl::MeasureReadRate() {
  DSV4_RETURN_IF_ERROR(health());
  const PoolUse use(&pool());
  DSV4_ASSIGN_OR_RETURN(const double rate, memory_->device().MeasureReadRate(&pool()));
  return places_.num_devices() * rate;
}

Result<std::unique_ptr<Session>> EngineImpl::NewSession() {
  DSV4_RETURN_IF_ERROR(health());
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<RankCaches> caches, RankCaches::Create(memory_->kv_of_ranks));
  return std::unique_ptr<Session>(new SessionImpl(*this, memory_, std::move(caches)));
}

Status EngineImpl::AppendTo(SessionImpl& session, std::span<const TokenId> tokens, LogitRows rows,
                            std::vector<float>* logits, const ProgressFn& progress) {
  DSV4_RETURN_IF_ERROR(CheckTokens(info_, LengthOf(session), tokens));
  if (rows != LogitRows::kNone && logits == nullptr)
    return InvalidArgument("logits were requested, but `logits` is null");
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t v = info_.vocab_size;
  const int64_t num_rows = rows == LogitRows::kAll ? total : rows == LogitRows::kLast ? 1 : 0;
  if (num_rows == 0) return AppendInto(session, tokens, rows, {}, progress);
  try {
    logits->resize(static_cast<size_t>(num_rows * v));
  } catch (const std::exception&) {
    return ResourceExhausted(StrCat("no memory for ", num_rows, " rows of logits"));
  }
  return AppendInto(session, tokens, rows, *logits, progress);
}

Status EngineImpl::AppendInto(SessionImpl& session, std::span<const TokenId> tokens, LogitRows rows,
                              std::span<float> logits, const ProgressFn& progress) {
  DSV4_RETURN_IF_ERROR(CheckTokens(info_, LengthOf(session), tokens));
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t v = info_.vocab_size;
  DSV4_RETURN_IF_ERROR(CheckRoom(rows, total, v, logits.size()));
  const Regime regime = runner().regimes().Of(total > 1 || session.tokens().empty() ? total : 0);
  for (int64_t done = 0; done < total;) {
    const int64_t n = std::min(prefill_chunk_, total - done);
    const bool last = done + n == total;
    Part part{.session = &session,
              .tokens = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(n)),
              .rows = rows == LogitRows::kLast && !last ? LogitRows::kNone : rows,
              .logits = nullptr,
              .regime = regime};
    if (part.rows != LogitRows::kNone) part.logits = logits.data() + (rows == LogitRows::kAll ? done * v : 0);
    DSV4_RETURN_IF_ERROR(RunPart(part));
    done += n;
    if (progress && !progress({Progress::Phase::kPrefill, done, total}) && done < total) {
      return Cancelled(StrCat("stopped after ", done, " of ", total, " tokens"));
    }
  }
  return {};
}

Result<std::unique_ptr<Session>> EngineImpl::NewSession(const KvSnapshot& snapshot) {
  return SessionFrom(snapshot, *this, memory_);
}

// The functions that read files use nothing that Restart destroys, so they may run concurrently with it.
Result<SnapshotInfo> EngineImpl::ReadSnapshotInfo(const std::string& path) {
  DSV4_RETURN_IF_ERROR(SnapshotFingerprint().status());
  return ReadImageInfo(path, kv_layout_, fingerprint_, info_);
}

Result<std::shared_ptr<const SnapshotImage>> EngineImpl::ReadSnapshot(const std::string& path) {
  DSV4_RETURN_IF_ERROR(SnapshotFingerprint().status());
  return ReadImage(path, kv_layout_, fingerprint_, info_);
}

Result<std::shared_ptr<const SnapshotImage>> EngineImpl::ReadSnapshotBytes(std::span<const std::byte> bytes) {
  DSV4_RETURN_IF_ERROR(SnapshotFingerprint().status());
  return ReadImage(bytes, kv_layout_, fingerprint_, info_);
}

Result<std::shared_ptr<const KvSnapshot>> EngineImpl::LoadSnapshot(const SnapshotImage& image) {
  DSV4_RETURN_IF_ERROR(health());
  return SnapshotFrom(image, memory_);
}

Status EngineImpl::TakeParts(std::span<const StepItem> items) {
  std::vector<Part>& parts = parts_;
  parts.clear();
  for (const StepItem& item : items) {
    if (item.session == nullptr) return InvalidArgument("a step item has no session");
    auto* session = dynamic_cast<SessionImpl*>(item.session);
    if (session == nullptr || &session->owner() != this) {
      return InvalidArgument("a step item's session belongs to another engine");
    }
    for (const Part& other : parts) {
      if (other.session == session) return InvalidArgument("a session appears twice in one step");
    }
    DSV4_RETURN_IF_ERROR(CheckTokens(info_, static_cast<int64_t>(session->tokens().size()), item.tokens));
    const bool to_vector = item.logits != nullptr && item.logits_into.empty();
    if (item.logits != nullptr && !to_vector) return InvalidArgument("a step item has both logits and logits_into");
    if (!to_vector && item.rows != LogitRows::kNone && item.logits_into.empty())
      return InvalidArgument("a step item requests logits, but its `logits` is null");
    if (!to_vector) {
      DSV4_RETURN_IF_ERROR(
          CheckRoom(item.rows, static_cast<int64_t>(item.tokens.size()), info_.vocab_size, item.logits_into.size()));
    }
    if (item.prompt_tokens != 0 && item.prompt_tokens < static_cast<int64_t>(item.tokens.size())) {
      return InvalidArgument(
          StrCat("a step item has ", item.tokens.size(), " tokens of a prompt of ", item.prompt_tokens,
                 "; prompt_tokens must count all tokens that the request computes, or be 0 for decode rows"));
    }
    parts.push_back({.session = session,
                     .tokens = item.tokens,
                     .rows = item.rows,
                     .logits = nullptr,
                     .regime = runner().regimes().Of(item.prompt_tokens)});
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].rows == LogitRows::kNone) continue;
    parts[i].logits = items[i].logits_into.data();
    if (items[i].logits == nullptr) continue;
    const size_t rows = parts[i].rows == LogitRows::kAll ? parts[i].tokens.size() : 1;
    items[i].logits->resize(rows * static_cast<size_t>(info_.vocab_size));
    parts[i].logits = items[i].logits->data();
  }
  return {};
}

Status EngineImpl::Step(std::span<const StepItem> items) {
  DSV4_RETURN_IF_ERROR(health());
  try {
    DSV4_RETURN_IF_ERROR(TakeParts(items));
    return Run();
  } catch (const std::bad_alloc&) {
    return NoMemoryForStep();
  }
}

Status EngineImpl::RunPart(const Part& part) {
  parts_.assign(1, part);
  return Run();
}

Status EngineImpl::Run() {
  std::vector<Part>& parts = parts_;
  DSV4_RETURN_IF_ERROR(health());
  const PoolUse use(&pool());
  try {
    // Allocates everything before the first pass, for the largest pass, so that no pass fails for lack of memory.
    repicker_.Look(*ranks_);
    const int64_t budget = std::max<int64_t>(prefill_chunk_, static_cast<int64_t>(parts.size()));
    const int64_t most = std::max(budget, runner().regimes().MaxRows(Regime::kDecode, budget));
    int64_t total = 0;
    std::array<int64_t, 3> rows{};  // rows of logits by regime: a pass has rows of one regime only
    for (const Part& part : parts) {
      const auto n = static_cast<int64_t>(part.tokens.size());
      const int64_t length = static_cast<int64_t>(part.session->tokens().size()) + n;
      DSV4_RETURN_IF_ERROR(ReserveKv(ranks_->recordings(), [&] { return part.session->caches().Reserve(length); }));
      part.session->ReserveTokens(part.tokens.size());
      total += n;
      rows[static_cast<size_t>(part.regime)] += part.rows == LogitRows::kAll    ? n
                                                : part.rows == LogitRows::kLast ? 1
                                                                                : 0;
    }
    const int64_t most_rows = std::min(*std::max_element(rows.begin(), rows.end()), MostStepRows(options_));
    ranks_->Reserve(std::min(total, most), std::min(most_rows, most));
    return RunPasses(budget);
  } catch (const std::bad_alloc&) {
    return NoMemoryForStep();
  }
}

// Restores all sessions of a step that is stopped, also the sessions of its earlier passes.
Status EngineImpl::RunPasses(int64_t budget) {
  DSV4_RETURN_IF_ERROR(CheckStopped());
  stop_.reset();
  if (SaveSessions()) stop_.emplace(PassStop{.wanted = &stopped_});
  while (!parts_.empty()) {
    const Status status = RunPass(budget);
    if (stop_ && stop_->ended) {
      for (const auto& [session, state] : saved_) session->Restore(state);
    }
    DSV4_RETURN_IF_ERROR(status);
  }
  return {};
}

bool EngineImpl::SaveSessions() {
  saved_.clear();
  if (ranks_->count() > 1 || !runner().on_host()) return false;
  try {
    for (const Part& part : parts_)
      saved_.emplace_back(part.session, part.session->SaveFor(static_cast<int64_t>(part.tokens.size())));
    return true;
  } catch (const std::bad_alloc&) {
    return false;  // the step runs to its end
  }
}

int64_t EngineImpl::AddToStep(Part& part, int64_t most) {
  const int64_t take = std::min(static_cast<int64_t>(part.tokens.size()), most);
  const int64_t begin = step_.num_tokens(), start = static_cast<int64_t>(part.session->tokens().size());
  step_.Add(part.tokens.first(static_cast<size_t>(take)), part.session->cache().View(start, begin, begin + take));
  step_caches_.push_back(&part.session->caches());
  const bool last = take == static_cast<int64_t>(part.tokens.size());
  part.taken = take;
  part.num_rows = part.rows == LogitRows::kAll ? take : part.rows == LogitRows::kLast && last ? 1 : 0;
  part.first_row = static_cast<int64_t>(step_.logit_rows.size());
  for (int64_t i = take - part.num_rows; i < take; ++i) step_.logit_rows.push_back(static_cast<int32_t>(begin + i));
  return take;
}

// Copies the rows of logits that are in the device's memory now to their sequences' buffers.
void EngineImpl::TakeRows(int64_t first, int64_t count) {
  for (const Part& part : parts_) {
    const int64_t begin = std::max(first, part.first_row);
    const int64_t end = std::min(first + count, part.first_row + part.num_rows);
    if (begin >= end) continue;
    runner().DownloadLogits(part.logits + (begin - part.first_row) * info_.vocab_size, begin - first, end - begin);
  }
}

Status EngineImpl::CheckPass() {
  std::vector<WrittenRows> written;
  for (const Part& part : parts_) {
    const auto start = static_cast<int64_t>(part.session->tokens().size());
    if (part.taken > 0) written.push_back({&part.session->caches(), start, start + part.taken});
  }
  return CheckRanks(*ranks_, *memory_, written);
}

Status EngineImpl::RunPass(int64_t budget) {
  std::vector<Part>& parts = parts_;
  step_.Clear();
  step_caches_.clear();
  // Decode rows first, then prompts. Every sequence of the regime gets one token while there is room. The sequences get
  // the rest in their order.
  const auto earlier = [](const Part& a, const Part& b) { return a.regime < b.regime; };
  const Regime regime = std::min_element(parts.begin(), parts.end(), earlier)->regime;
  int64_t room = runner().regimes().MaxRows(regime, budget);
  int64_t waiting = std::count_if(parts.begin(), parts.end(),
                                  [regime](const Part& part) { return part.regime == regime; });
  for (Part& part : parts) {
    part.taken = part.num_rows = 0;
    if (part.regime != regime || room == 0) continue;
    --waiting;
    room -= AddToStep(part, std::max<int64_t>(room - waiting, 1));
  }

  DSV4_RETURN_IF_ERROR(ranks_->Forward(
      step_, regime, step_caches_, [this](int64_t first, int64_t count) { TakeRows(first, count); },
      stop_ ? &*stop_ : nullptr));
  if (stop_ && stop_->ended) return WasStopped();
  if (options_.ranks.check) DSV4_RETURN_IF_ERROR(CheckPass());
  if (!runner().device().Synchronize().ok()) return health();  // health() names the rank
  for (Part& part : parts) {
    if (part.taken == 0) continue;
    part.session->Commit(part.tokens.first(static_cast<size_t>(part.taken)));
    if (!step_.keeps_drafts) part.session->SkipDrafts();
    part.logits += part.num_rows * info_.vocab_size;
    part.tokens = part.tokens.subspan(static_cast<size_t>(part.taken));
  }
  std::erase_if(parts, [](const Part& part) { return part.tokens.empty(); });
  return {};
}

Result<std::shared_ptr<const SnapshotImage>> Engine::ReadSnapshotBytes(std::span<const std::byte> bytes) {
  (void)bytes;
  return Unsupported("this engine reads snapshots from files only");
}

Result<std::shared_ptr<const KvSnapshot>> Engine::LoadSnapshot(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const SnapshotImage> image, ReadSnapshot(path));
  return LoadSnapshot(*image);
}

}  // namespace dsv4
