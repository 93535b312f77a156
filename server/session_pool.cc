#include "session_pool.h"

#include <algorithm>
#include <utility>

namespace dsv4::server {

namespace {

// Whether `text` starts with the spelling of an added token: text before one is encoded apart from it.
bool StartsWithAddedToken(const Tokenizer& tokenizer, std::string_view text) {
  if (text.empty() || text.front() != '<') return false;
  const size_t end = text.find('>');
  if (end == std::string_view::npos || end > 64) return false;
  const std::optional<TokenId> id = tokenizer.FindToken(text.substr(0, end + 1));
  return id.has_value() && tokenizer.IsAdded(*id);
}

}  // namespace

std::unique_ptr<Session> SessionPool::Remove(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  std::unique_ptr<Session> session = std::move(entry->session);
  entries_.erase(entry);
  return session;
}

void SessionPool::Put(std::unique_ptr<Session> session, std::vector<TokenId> ids, std::string rendered) {
  if (session == nullptr || session->tokens().empty() || max_sessions_ == 0) return;
  std::string text;
  for (const TokenId id : ids) text += tokenizer_.TokenBytes(id);
  if (rendered == text) rendered.clear();
  const int64_t bytes = session->memory_bytes();
  std::vector<std::unique_ptr<Session>> dropped;
  const std::lock_guard lock(mutex_);
  // A kept session that is a beginning of this one can serve nothing that this one cannot serve, but for prompts that
  // branch off in between; those are rarer than memory is dear.
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto entry = it++;
    const std::vector<TokenId>& old = entry->session->tokens();
    if (old.size() <= session->tokens().size() &&
        std::equal(old.begin(), old.end(), session->tokens().begin())) {
      dropped.push_back(Remove(entry));
    }
  }
  if (entries_.size() >= max_sessions_) dropped.push_back(Remove(std::prev(entries_.end())));
  entries_.push_front({.session = std::move(session),
                       .ids = std::move(ids),
                       .text = std::move(text),
                       .rendered = std::move(rendered),
                       .bytes = bytes});
  bytes_ += bytes;
}

SessionPool::Found SessionPool::Take(const std::vector<TokenId>& prompt) {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) return {.session = nullptr, .miss_reason = "empty"};
  auto best = entries_.end();
  size_t longest_common = 0;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const std::vector<TokenId>& tokens = it->session->tokens();
    const size_t limit = std::min(tokens.size(), prompt.size());
    const auto end = std::mismatch(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(limit),
                                   prompt.begin())
                         .first;
    const auto common = static_cast<size_t>(end - tokens.begin());
    longest_common = std::max(longest_common, common);
    if (common < tokens.size() || tokens.size() >= prompt.size()) continue;
    if (best == entries_.end() || tokens.size() > best->session->tokens().size()) best = it;
  }
  if (best != entries_.end()) return {.session = Remove(best)};
  constexpr size_t kRelated = 16;  // tokens: BOS and a role are common to all
  return {.session = nullptr, .miss_reason = longest_common >= kRelated ? "diverged" : "unrelated"};
}

std::vector<TokenId> SessionPool::EncodePrompt(std::string_view text) const {
  std::vector<TokenId> ids;
  size_t known = 0;
  {
    const std::lock_guard lock(mutex_);
    const Entry* best = nullptr;
    for (const Entry& entry : entries_) {
      for (const std::string* kept : {&entry.text, &entry.rendered}) {
        if (kept->size() <= known || kept->size() >= text.size() || !text.starts_with(*kept)) continue;
        if (!StartsWithAddedToken(tokenizer_, text.substr(kept->size()))) continue;
        best = &entry;
        known = kept->size();
      }
    }
    if (best != nullptr) ids = best->ids;
  }
  const std::vector<TokenId> rest = tokenizer_.Encode(text.substr(known));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

bool SessionPool::EvictOldest() {
  std::unique_ptr<Session> session;
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) return false;
  session = Remove(std::prev(entries_.end()));
  return true;
}

void SessionPool::Clear() {
  while (EvictOldest()) {
  }
}

int64_t SessionPool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t SessionPool::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

}  // namespace dsv4::server
