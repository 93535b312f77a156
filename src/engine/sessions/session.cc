#include "engine/sessions/session.h"

#include <algorithm>

#include "base/str.h"

namespace dsv4 {

static_assert(kMaxTruncatedTokens <= kSpareSlots);

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
                                    "; shorten the prompt or raise the limit (--ctx) up to the model's limit"));
  }
  return {};
}

Status SessionImpl::Truncate(int64_t num_tokens) {
  const auto length = static_cast<int64_t>(tokens_.size());
  if (num_tokens < 0 || num_tokens > length) {
    return InvalidArgument(StrCat("cannot truncate a session of ", length, " tokens to ", num_tokens));
  }
  if (num_tokens == 0) return Reset(), Status{};
  if (num_tokens == length) return {};
  if (written_ - num_tokens > kMaxTruncatedTokens) {
    return InvalidArgument(StrCat("cannot truncate a session that has had ", written_, " tokens to ", num_tokens,
                                  ": it can remove at most ", kMaxTruncatedTokens,
                                  " of them; begin a new session, or take a snapshot earlier"));
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
