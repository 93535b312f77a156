// Rounds whose tokens are drawn on the host: Engine::Step, and samplers of any kind.
#pragma once

#include <vector>

#include "engine/drafts/round_step.h"

namespace dsv4 {

class EngineImpl;

class HostRound : public RoundStep {
 public:
  // `engine` outlives it.
  explicit HostRound(EngineImpl& engine) : engine_(engine) {}

  void KeepDrafts(bool keeps) override { keeps_drafts_ = keeps; }
  Status Run(std::span<const RoundSequence> sequences) override;
  Result<SampledToken> Draw(size_t i, size_t row) override;

 private:
  EngineImpl& engine_;
  std::span<const RoundSequence> sequences_;
  std::vector<std::vector<float>> logits_;  // of sequences_
  std::vector<StepItem> step_;
  bool keeps_drafts_ = true;
};

}  // namespace dsv4
