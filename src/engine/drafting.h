// What an engine drafts with, and how that went.
#pragma once

#include <cstdint>
#include <memory>

#include "dsv4/engine.h"
#include "dsv4/speculation.h"
#include "engine/draft_policy.h"
#include "engine/drafter.h"

namespace dsv4 {

struct Drafting {
  // What the options ask for, where no module of a model is needed.
  explicit Drafting(const EngineOptions& options);

  std::unique_ptr<Drafter> drafter;  // null: no drafts
  int64_t max_tokens = 0;            // of a draft
  DraftPolicy policy;
  DraftCounts counts;
};

}  // namespace dsv4
