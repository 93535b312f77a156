#include "engine/engine_impl.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/available_memory.h"
#include "base/str.h"
#include "engine/options.h"

namespace dsv4 {

namespace {
constexpr int64_t kTileTokens = 8;  // from here on AMX tiles are faster than AVX-512 (docs/cpu.md)
}  // namespace

int64_t EngineImpl::free_bytes() const {
  return device_->kind() == DeviceKind::kCpu ? AvailableMemory() : device_->free_bytes();
}

EngineImpl::EngineImpl(std::unique_ptr<Device> device, std::unique_ptr<ThreadPool> pool,
                       std::unique_ptr<LoadedModel> model, ModelInfo info, const EngineOptions& options)
    : memory_(std::make_shared<SequenceMemory>(std::move(device), model->kv_layout())), device_(memory_->device.get()),
      pool_(std::move(pool)), model_(std::move(model)), info_(std::move(info)),
      prefill_chunk_(PrefillChunk(options)),
      activation_dtype_(options.activation_dtype), modes_(DescribeModes(options)),
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
  activations_ = model_->MakeStepMemory(tokens, rows, *device_);
  step_buffers_.Reserve(tokens, rows);
}

bool EngineImpl::UsesTiles(int64_t num_tokens) const {
  return amx_ == AmxUse::kAlways || (amx_ == AmxUse::kPrefill && num_tokens >= kTileTokens);
}

void EngineImpl::RunForward() {
  const int64_t t = step_.num_tokens(), rows = static_cast<int64_t>(step_.logit_rows.size());
  const StepView view = step_buffers_.Place(step_);
  ctx_.tiles = UsesTiles(t);
  const auto forward = [&] { model_->Forward(ctx_, view, *activations_, activations_->Logits(rows)); };
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
    device_->Download(part.logits, activations_->Logits(activations_->max_rows()).f32() + part.first_row * v, count * 4);
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

Result<double> EngineImpl::MeasureReadRate() {
  const PoolUse use(pool_.get());
  return device_->MeasureReadRate(pool_.get());
}

}  // namespace dsv4
