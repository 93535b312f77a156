// Finished sessions, kept while there is room: a prompt that goes on from one exactly starts there instead of at
// token 0. Agents and chats send the whole conversation again with each turn, so their next prompt is such a one.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/session.h"
#include "dsv4/tokenizer.h"

namespace dsv4::server {

// Sessions are put in, taken out and destroyed by the engine's thread; EncodePrompt may be called by any.
class SessionPool {
 public:
  SessionPool(const Tokenizer& tokenizer, size_t max_sessions)
      : tokenizer_(tokenizer), max_sessions_(max_sessions) {}

  // `ids` are the session's tokens and those that were chosen but not read yet (at most a few). `rendered`: how the
  // encoder writes the same conversation, where that may differ from what the model wrote (white space around calls,
  // the form of their arguments); "" where there is no such text.
  void Put(std::unique_ptr<Session> session, std::vector<TokenId> ids, std::string rendered = "");

  struct Found {
    std::unique_ptr<Session> session;  // null: none
    const char* miss_reason = "";  // empty: nothing is kept; unrelated; diverged: a kept one goes another way
  };
  // The kept session with the most tokens, all of which start `prompt`, which has at least one more.
  Found Take(const std::vector<TokenId>& prompt);

  // The ids of a prompt. Where it repeats a kept session's text up to a token that cannot be merged with text before
  // it, these are that session's ids, whatever way the model split its words; so its reply is found again.
  std::vector<TokenId> EncodePrompt(std::string_view text) const;

  // Frees the session that has not been used for the longest time. False: none is kept.
  bool EvictOldest();
  void Clear();

  int64_t bytes() const;
  int64_t size() const;

 private:
  struct Entry {
    std::unique_ptr<Session> session;
    std::vector<TokenId> ids;
    std::string text;      // of ids
    std::string rendered;  // another text that stands for the same ids, or ""
    int64_t bytes;
  };
  using Entries = std::list<Entry>;

  // Removes the entry; the session is destroyed by the caller, outside the lock.
  std::unique_ptr<Session> Remove(Entries::iterator entry);

  const Tokenizer& tokenizer_;
  const size_t max_sessions_;
  mutable std::mutex mutex_;
  Entries entries_;  // the one used last first
  int64_t bytes_ = 0;
};

}  // namespace dsv4::server
