#include "engine/host_round.h"

#include <algorithm>

#include "engine/engine_impl.h"

namespace dsv4 {

Status HostRound::Run(std::span<const RoundSequence> sequences) {
  sequences_ = sequences;
  logits_.resize(std::max(logits_.size(), sequences.size()));
  step_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    step_.push_back({.session = sequences[i].item->session,
                     .tokens = sequences[i].tokens,
                     .rows = LogitRows::kAll,
                     .logits = &logits_[i]});
  }
  engine_.KeepDrafts(keeps_drafts_);
  const Status status = engine_.Step(step_);
  engine_.KeepDrafts(true);
  return status;
}

Result<SampledToken> HostRound::Draw(size_t i, size_t row) {
  const DecodeItem& item = *sequences_[i].item;
  const auto vocab = static_cast<size_t>(engine_.info().vocab_size);
  const std::span<const uint32_t> allowed = item.allowed ? item.allowed() : std::span<const uint32_t>();
  return item.sampler->Sample(std::span(logits_[i]).subspan(row * vocab, vocab), allowed);
}

}  // namespace dsv4
