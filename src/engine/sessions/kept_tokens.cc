#include "engine/sessions/kept_tokens.h"

#include <algorithm>
#include <utility>

namespace dsv4 {

std::shared_ptr<const KeptTokens> KeptTokens::Of(std::shared_ptr<const KeptTokens> before, size_t num_common,
                                                 std::span<const TokenId> tokens) {
  if (before != nullptr && num_common == tokens.size() && before->size() == num_common) return before;
  // Skips lists that contribute nothing to the common tokens.
  while (before != nullptr && before->begin_ >= num_common) before = before->before_;
  return std::make_shared<const KeptTokens>(std::move(before), num_common, tokens.subspan(num_common));
}

// A loop, because recursion would need one stack frame per list of a long timeline.
KeptTokens::~KeptTokens() {
  std::shared_ptr<const KeptTokens> last = std::move(before_);
  while (last != nullptr && last.use_count() == 1) {
    std::shared_ptr<const KeptTokens> next = std::move(last->before_);
    last = std::move(next);
  }
}

std::vector<TokenId> KeptTokens::Copy() const {
  std::vector<TokenId> all(size());
  size_t end = all.size();
  for (const KeptTokens* part = this; part != nullptr; part = part->before_.get()) {
    if (end <= part->begin_) continue;
    std::copy_n(part->ids_.begin(), end - part->begin_, all.begin() + static_cast<std::ptrdiff_t>(part->begin_));
    end = part->begin_;
  }
  return all;
}

}  // namespace dsv4
