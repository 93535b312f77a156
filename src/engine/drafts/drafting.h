// What an engine drafts with, and how that went.
#pragma once

#include <cstdint>
#include <memory>

#include "dsv4/engine.h"
#include "dsv4/measure.h"
#include "dsv4/speculation.h"
#include "engine/drafts/draft_policy.h"
#include "engine/drafts/drafter.h"

namespace dsv4 {

class Ranks;

struct Drafting {
  // What the options ask for, where no module of a model is needed.
  explicit Drafting(const DraftOptions& options);
  // The model's module instead, if it has one and the options ask for it; drafts have as many tokens as it makes at
  // most. `ranks` outlives its use, which CloseModule ends.
  void UseModule(Ranks& ranks, int64_t vocab_size);
  void CloseModule();
  // As ReplaceDrafts (dsv4/measure.h).
  void Replace(KnownDrafts known, int64_t vocab_size);

  void Use(std::unique_ptr<Drafter> with);
  // A new policy, which knows the times that the old one has seen; `threshold` as DraftOptions::threshold.
  void UsePolicy(float threshold);
  // As the options say.
  void UsePolicy() { UsePolicy(threshold_); }

  // Whether rounds of so many drafts may ever follow each other without the host, by the options' threshold.
  bool MayRunAhead(int64_t drafts) const;

  std::unique_ptr<Drafter> drafter;  // null: no drafts
  int64_t max_tokens = 0;            // of a draft
  DraftPolicy policy;
  DraftCounts counts;

 private:
  const float threshold_;
  const int64_t wanted_tokens_;  // 0: what suits the drafter
  int64_t most_tokens_ = kMaxDraftTokens;
  bool uses_module_ = false;
};

}  // namespace dsv4
