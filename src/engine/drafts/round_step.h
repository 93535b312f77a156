// A step of RoundLoop: rows of several sequences, and the draws from their logits.
#pragma once

#include <cstddef>
#include <span>

#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "engine/sessions/live_item.h"

namespace dsv4 {

struct RoundSequence {
  const LiveItem* live;
  const DecodeItem* item;
  std::span<const TokenId> tokens;  // the next one, then those drafted behind it
};

class RoundStep {
 public:
  virtual ~RoundStep() = default;

  // Whether the next steps write what a draft module reads later (Step::keeps_drafts); they do without this. Where
  // another decodes what has no drafts, it need not matter.
  virtual void KeepDrafts(bool /*keeps*/) {}

  // Computes the sequences' rows; their tokens are appended then. Errors as of Engine::Step; on one nothing has
  // changed.
  virtual Status Run(std::span<const RoundSequence> sequences) = 0;
  // Whether the last Run did what a repeated one does not, so that its time says nothing.
  virtual bool was_first() const { return false; }

  // The draw from a row of sequences[i], as its sampler's next: rows in order, each once.
  virtual Result<SampledToken> Draw(size_t i, size_t row) = 0;

  // Sequences have been decoded by others since: what is known of them is not.
  virtual void Forget() {}
};

}  // namespace dsv4
