// The ids of snapshots: those that several of one timeline have in common are stored once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dsv4/types.h"

namespace dsv4 {

// Never changes. Those of one engine are used by one thread at a time.
class KeptTokens {
 public:
  // Keeps `tokens`, of which the first `num_common` are those of `before` (null: none are).
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
  mutable std::shared_ptr<const KeptTokens> before_;  // its first begin_ tokens; a destructor takes it out
  const size_t begin_;
  const std::vector<TokenId> ids_;  // behind these
};

}  // namespace dsv4
