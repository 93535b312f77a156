#include <algorithm>
#include <new>
#include <utility>

#include "base/available_memory.h"
#include "base/str.h"
#include "engine/engine_impl.h"
#include "engine/memory_plan.h"
#include "engine/options.h"

namespace dsv4 {

namespace {

Status NoMemoryForStep() {
  return ResourceExhausted("no memory for this step; use a smaller prefill chunk or fewer sequences");
}

}  // namespace

EngineImpl::EngineImpl(std::unique_ptr<Device> device, std::unique_ptr<ThreadPool> pool,
                       std::unique_ptr<LoadedModel> model, ModelInfo info, const EngineOptions& options)
    : memory_(std::make_shared<SequenceMemory>(std::move(device), model->kv_layout())), pool_(std::move(pool)),
      info_(std::move(info)), prefill_chunk_(PrefillChunk(options)), activation_dtype_(options.activation_dtype),
      modes_(DescribeModes(options)),
      runner_(std::make_unique<Runner>(*memory_->device, *pool_, std::move(model), options, info_.max_context,
                                       RecordingBytes(info_.num_layers))),
      decode_steps_(std::make_unique<DecodeSteps>(*runner_, info_.vocab_size)) {
  memory_->engine = this;
}

int64_t EngineImpl::free_bytes() const { return runner_->on_host() ? AvailableMemory() : memory_->device->free_bytes(); }

Result<double> EngineImpl::MeasureReadRate() {
  const PoolUse use(pool_.get());
  return memory_->device->MeasureReadRate(pool_.get());
}

Result<std::unique_ptr<Session>> EngineImpl::NewSession() {
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> cache, SequenceCache::Create(memory_->kv));
  return std::unique_ptr<Session>(new SessionImpl(*this, memory_, std::move(cache)));
}

Status EngineImpl::TakeParts(std::span<const StepItem> items) {
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
    DSV4_RETURN_IF_ERROR(CheckTokens(info_, static_cast<int64_t>(session->tokens().size()), item.tokens));
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
  return {};
}

Status EngineImpl::Step(std::span<const StepItem> items) {
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
    runner_->Reserve(std::min(total, budget), std::min(rows, budget));
    while (!parts.empty()) DSV4_RETURN_IF_ERROR(RunPass(budget));
    return {};
  } catch (const std::bad_alloc&) {
    return NoMemoryForStep();
  }
}

int64_t EngineImpl::AddToStep(Part& part, int64_t most) {
  const int64_t take = std::min(static_cast<int64_t>(part.tokens.size()), most);
  const int64_t begin = step_.num_tokens(), start = static_cast<int64_t>(part.session->tokens().size());
  for (int64_t i = 0; i < take; ++i) {
    step_.tokens.push_back(part.tokens[static_cast<size_t>(i)]);
    step_.positions.push_back(start + i);
    step_.sequence_of.push_back(static_cast<int32_t>(step_.sequences.size()));
  }
  step_.sequences.push_back(part.session->cache().View(start, begin, begin + take));
  const bool last = take == static_cast<int64_t>(part.tokens.size());
  part.taken = take;
  part.num_rows = part.rows == LogitRows::kAll ? take : part.rows == LogitRows::kLast && last ? 1 : 0;
  part.first_row = static_cast<int64_t>(step_.logit_rows.size());
  for (int64_t i = take - part.num_rows; i < take; ++i) step_.logit_rows.push_back(static_cast<int32_t>(begin + i));
  return take;
}

Status EngineImpl::RunPass(int64_t budget) {
  std::vector<Part>& parts = parts_;
  step_.Clear();
  // Every sequence gets at least one token; the rest of the budget goes to them in order.
  int64_t spare = budget - static_cast<int64_t>(parts.size());
  for (Part& part : parts) spare -= AddToStep(part, 1 + spare) - 1;

  runner_->Forward(step_);
  for (Part& part : parts) {
    if (part.num_rows == 0) continue;
    runner_->DownloadLogits(part.logits, part.first_row, part.num_rows);
    part.logits += part.num_rows * info_.vocab_size;
  }
  DSV4_RETURN_IF_ERROR(runner_->device().Synchronize());
  for (Part& part : parts) {
    part.session->Commit(part.tokens.first(static_cast<size_t>(part.taken)));
    part.tokens = part.tokens.subspan(static_cast<size_t>(part.taken));
  }
  std::erase_if(parts, [](const Part& part) { return part.tokens.empty(); });
  return {};
}

}  // namespace dsv4
