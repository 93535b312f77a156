// The token ids of snapshots. Ids that several snapshots of a timeline share are stored once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dsv4/types.h"

namespace dsv4 {

// Immutable. One thread at a time uses the lists of one engine.
class KeptTokens {
 public:
  // Keeps `tokens`. The first `num_common` of them are the first of `before` (null: num_common is 0).
  static std::shared_ptr<const KeptTokens> Of(std::shared_ptr<const KeptTokens> before, size_t num_common,
                                              std::span<const TokenId> tokens);
  KeptTokens(std::shared_ptr<const KeptTokens> before, size_t begin, std::span<const TokenId> ids)
      : before_(std::move(before)), begin_(begin), ids_(ids.begin(), ids.end()) {}
  ~KeptTokens();
  KeptTokens(const KeptTokens&) = delete;
  KeptTokens& operator=(const KeptTokens&) = delete;

  size_t size() const { return begin_ + ids_.size(); }
  std::vector<TokenId> Copy() const;

 private:
  mutable std::shared_ptr<const KeptTokens> before_;  // its first begin_ tokens; a destructor moves it out
  const size_t begin_;
  const std::vector<TokenId> ids_;  // the tokens after the first begin_
};

}  // namespace dsv4
