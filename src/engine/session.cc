#include "engine/session.h"

#include <algorithm>

#include "base/str.h"
#include "engine/engine_impl.h"

namespace dsv4 {

static_assert(kMaxTakenBack <= kSpareSlots);

Status CheckTokens(const ModelInfo& info, int64_t length, std::span<const TokenId> tokens) {
  if (tokens.empty()) return InvalidArgument("no tokens to process: pass at least one");
  for (const TokenId id : tokens) {
    if (id < 0 || id >= info.vocab_size) {
      return InvalidArgument(StrCat("token id ", id, " is outside the model's vocabulary of ", info.vocab_size));
    }
  }
  length += static_cast<int64_t>(tokens.size());
  if (length > info.max_context) {
    return ResourceExhausted(StrCat(length, " tokens exceed the context limit of ", info.max_context,
                                    "; shorten the prompt or raise the limit (--ctx) up to the model's own"));
  }
  return {};
}

Status SessionImpl::Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                           const ProgressFn& progress) {
  DSV4_RETURN_IF_ERROR(CheckTokens(engine_->info(), static_cast<int64_t>(tokens_.size()), tokens));
  if (rows != LogitRows::kNone && logits == nullptr) return InvalidArgument("no place for the logits");
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t v = engine_->info().vocab_size;
  const int64_t num_rows = rows == LogitRows::kAll ? total : rows == LogitRows::kLast ? 1 : 0;
  try {
    if (num_rows > 0) logits->resize(static_cast<size_t>(num_rows * v));
  } catch (const std::exception&) {
    return ResourceExhausted(StrCat("no memory for ", num_rows, " rows of logits"));
  }
  const Regime regime = engine_->runner().regimes().Of(total > 1 || tokens_.empty() ? total : 0);
  for (int64_t done = 0; done < total;) {
    const int64_t n = std::min(engine_->prefill_chunk(), total - done);
    const bool last = done + n == total;
    EngineImpl::Part part{.session = this,
                          .tokens = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(n)),
                          .rows = rows == LogitRows::kLast && !last ? LogitRows::kNone : rows,
                          .logits = nullptr,
                          .regime = regime};
    if (part.rows != LogitRows::kNone) part.logits = logits->data() + (rows == LogitRows::kAll ? done * v : 0);
    DSV4_RETURN_IF_ERROR(engine_->RunPart(part));
    done += n;
    if (progress && !progress({Progress::Phase::kPrefill, done, total}) && done < total) {
      return Cancelled(StrCat("stopped after ", done, " of ", total, " tokens"));
    }
  }
  return {};
}

Status SessionImpl::Truncate(int64_t num_tokens) {
  const auto length = static_cast<int64_t>(tokens_.size());
  if (num_tokens < 0 || num_tokens > length) {
    return InvalidArgument(StrCat("cannot cut a session of ", length, " tokens to ", num_tokens));
  }
  if (num_tokens == 0) return Reset(), Status{};
  if (num_tokens == length) return {};
  if (written_ - num_tokens > kMaxTakenBack) {
    return InvalidArgument(StrCat("cannot cut a session that has had ", written_, " tokens to ", num_tokens,
                                  ": it takes back ", kMaxTakenBack,
                                  " at most; begin a new session, or take a snapshot earlier"));
  }
  DSV4_RETURN_IF_ERROR(caches_->Truncate(num_tokens));
  KeepFirst(static_cast<size_t>(num_tokens));
  drafts_from_ = std::min(drafts_from_, num_tokens);
  return {};
}

void SessionImpl::Reset() {
  KeepFirst(0);
  written_ = drafts_from_ = 0;
  caches_->Reset();
}

}  // namespace dsv4
