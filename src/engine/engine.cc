#include "engine/engine_impl.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/str.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/bind.h"
#include "model/deepseek_v4/plan.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxPrefillChunk = 1 << 16;
constexpr int kMaxThreads = 1024;

}  // namespace

Status CheckEngineOptions(const EngineOptions& o) {
  if (o.device.rfind("cuda", 0) == 0) {
    return Unsupported(StrCat("device '", o.device, "': this build has no CUDA; use --device cpu"));
  }
  if (o.device != "cpu") return InvalidArgument(StrCat("unknown device '", o.device, "'; use cpu"));
  if (o.num_threads < 0 || o.num_threads > kMaxThreads) {
    return InvalidArgument(StrCat("threads ", o.num_threads, ": from 1 to ", kMaxThreads, ", or 0 for one per core"));
  }
  if (o.prefill_chunk < 1 || o.prefill_chunk > kMaxPrefillChunk) {
    return InvalidArgument(StrCat("prefill chunk ", o.prefill_chunk, ": from 1 to ", kMaxPrefillChunk, " tokens"));
  }
  if (o.max_context < 0) return InvalidArgument(StrCat("context limit ", o.max_context, ": at least 1, or 0"));
  return {};
}

ModelInfo MakeModelInfo(const Config& config, const EngineOptions& options, const BindReport& report) {
  const int64_t limit = options.max_context > 0 ? options.max_context : config.max_positions;
  return {.vocab_size = config.vocab_size, .num_layers = config.num_layers, .hidden_size = config.hidden_size,
          .max_context = std::min(limit, config.max_positions), .bos_token_id = config.bos_token_id,
          .eos_token_ids = config.eos_token_ids, .unused_tensors = report.unused_tensors,
          .weight_bytes = report.weight_bytes};
}

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  DSV4_RETURN_IF_ERROR(CheckEngineOptions(options));
  DSV4_ASSIGN_OR_RETURN(Config config, LoadConfig(options.model_dir));
  DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const TensorSource> source, TensorSource::Open(options.model_dir));
  BindReport report;
  DSV4_ASSIGN_OR_RETURN(Weights weights, BindWeights(config, source, &report));
  const ModelInfo info = MakeModelInfo(config, options, report);
  const NumericsModes modes{.kv = options.kv_dtype, .index = options.index_dtype,
                            .activation = options.activation_dtype};
  // A checkpoint that fits in memory is read now, in order; a larger one as its pages are needed.
  if (source->num_bytes() < AvailableMemory()) {
    const auto report_progress = [&options](int64_t done, int64_t total) {
      return !options.progress || options.progress({Progress::Phase::kLoading, done, total});
    };
    if (!source->Preload(report_progress)) return Cancelled("loading was cancelled");
  }
  return std::unique_ptr<Engine>(
      new EngineImpl(MakeModel(std::move(config), std::move(weights), modes), info, options));
}

EngineImpl::EngineImpl(Model model, ModelInfo info, const EngineOptions& options)
    : model_(std::move(model)), info_(std::move(info)), prefill_chunk_(options.prefill_chunk),
      pool_(options.num_threads), pages_(model_.kv_layout.page_bytes) {
  ctx_ = {.pool = &pool_, .reference_ops = options.reference_ops};
}

Result<std::unique_ptr<Session>> EngineImpl::NewSession() {
  DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> cache, SequenceCache::Create(model_.kv_layout, pages_));
  return std::unique_ptr<Session>(new SessionImpl(*this, std::move(cache)));
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
    std::vector<Part> parts;
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
      parts.push_back({.session = session, .tokens = item.tokens, .rows = item.rows, .logits = item.logits});
    }
    for (const Part& part : parts) {
      const int64_t end = static_cast<int64_t>(part.session->tokens().size() + part.tokens.size());
      DSV4_RETURN_IF_ERROR(part.session->cache().Reserve(end));
      if (part.rows != LogitRows::kNone) {
        const size_t rows = part.rows == LogitRows::kAll ? part.tokens.size() : 1;
        part.logits->resize(rows * static_cast<size_t>(info_.vocab_size));
      }
      part.session->ReserveTokens(part.tokens.size());
    }
    // Everything that a pass needs, for the largest pass, before the first one: no failure half-way.
    const int64_t budget = std::max<int64_t>(prefill_chunk_, static_cast<int64_t>(parts.size()));
    int64_t total = 0, rows = 0;
    for (const Part& part : parts) {
      const auto n = static_cast<int64_t>(part.tokens.size());
      total += n;
      rows += part.rows == LogitRows::kAll ? n : 1;
    }
    const int64_t max_rows = std::min(rows, budget);
    EnsureActivations(std::min(total, budget), max_rows);
    logits_.reserve(static_cast<size_t>(max_rows * info_.vocab_size));
    while (!parts.empty()) RunPass(parts, budget);
    return {};
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for this step; use a smaller prefill chunk or fewer sequences");
  }
}

void EngineImpl::EnsureActivations(int64_t max_tokens, int64_t max_rows) {
  if (activations_ && activations_->max_tokens() >= max_tokens && activations_->max_rows() >= max_rows) return;
  const int64_t tokens = std::max(max_tokens, activations_ ? activations_->max_tokens() : 0);
  const int64_t rows = std::max(max_rows, activations_ ? activations_->max_rows() : 0);
  activations_.reset();
  activations_ = std::make_unique<Activations>(model_.config, tokens, rows);
}

void EngineImpl::RunPass(std::vector<Part>& parts, int64_t budget) {
  step_ = {};
  // Every sequence gets at least one token; the rest of the budget goes to them in order.
  int64_t spare = budget - static_cast<int64_t>(parts.size());
  struct Want {
    Part* part;
    int64_t first_row, num_rows;  // of this pass's logits
  };
  std::vector<Want> wants;
  std::vector<int64_t> taken;
  for (Part& part : parts) {
    const int64_t take = std::min(static_cast<int64_t>(part.tokens.size()), 1 + spare);
    spare -= take - 1;
    taken.push_back(take);
    const int64_t begin = step_.num_tokens(), start = static_cast<int64_t>(part.session->tokens().size());
    for (int64_t i = 0; i < take; ++i) {
      step_.tokens.push_back(part.tokens[static_cast<size_t>(i)]);
      step_.positions.push_back(start + i);
      step_.sequence_of.push_back(static_cast<int32_t>(step_.sequences.size()));
    }
    step_.sequences.push_back(part.session->cache().View(start, begin, begin + take));
    const bool last = take == static_cast<int64_t>(part.tokens.size());
    const int64_t num_rows = part.rows == LogitRows::kAll ? take : part.rows == LogitRows::kLast && last ? 1 : 0;
    if (num_rows > 0) wants.push_back({&part, static_cast<int64_t>(step_.logit_rows.size()), num_rows});
    for (int64_t i = take - num_rows; i < take; ++i) step_.logit_rows.push_back(static_cast<int32_t>(begin + i));
  }

  const int64_t v = info_.vocab_size, rows = static_cast<int64_t>(step_.logit_rows.size());
  logits_.resize(static_cast<size_t>(rows * v));
  Forward(ctx_, model_, step_, *activations_, {logits_.data(), DType::kF32, {rows, v}});

  for (const Want& want : wants) {
    std::copy_n(logits_.begin() + want.first_row * v, want.num_rows * v, want.part->logits->begin() + want.part->done * v);
    want.part->done += want.num_rows;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].session->Commit(parts[i].tokens.first(static_cast<size_t>(taken[i])));
    parts[i].tokens = parts[i].tokens.subspan(static_cast<size_t>(taken[i]));
  }
  std::erase_if(parts, [](const Part& part) { return part.tokens.empty(); });
}

Status SessionImpl::Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                           const ProgressFn& progress) {
  DSV4_RETURN_IF_ERROR(engine_->Check(*this, tokens));
  if (rows != LogitRows::kNone && logits == nullptr) return InvalidArgument("no place for the logits");
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t v = engine_->info().vocab_size;
  try {
    if (rows == LogitRows::kAll) logits->resize(static_cast<size_t>(total * v));
  } catch (const std::exception&) {
    return ResourceExhausted(StrCat("no memory for ", total, " rows of logits"));
  }
  std::vector<float> chunk_logits;
  for (int64_t done = 0; done < total;) {
    const int64_t n = std::min(engine_->prefill_chunk(), total - done);
    const bool last = done + n == total;
    const LogitRows chunk_rows = rows == LogitRows::kLast && !last ? LogitRows::kNone : rows;
    std::vector<float>* out = rows == LogitRows::kAll ? &chunk_logits : logits;
    const StepItem item{.session = this, .tokens = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(n)),
                        .rows = chunk_rows, .logits = chunk_rows == LogitRows::kNone ? nullptr : out};
    DSV4_RETURN_IF_ERROR(engine_->Step({&item, 1}));
    if (rows == LogitRows::kAll) std::copy(chunk_logits.begin(), chunk_logits.end(), logits->begin() + done * v);
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
