// Drafts by the checkpoint's own module (model/model.h): a pass of it for each place of a draft. The host draws as the
// row that will verify the token will be drawn from; a device with the same random number and cuts, but without
// penalties, bias and masks, which would need what the host has.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/speculation.h"
#include "engine/drafts/draft_chain.h"
#include "engine/drafts/drafter.h"
#include "engine/ranks/ranks.h"

namespace dsv4 {

class ModelDrafter : public Drafter {
 public:
  // `ranks` outlives it; facts.module is one.
  ModelDrafter(Ranks& ranks, const DraftFacts& facts, int64_t vocab_size);

  int64_t max_tokens() const override { return std::min(facts_.usual, most_); }
  Status Propose(std::span<Draft> drafts) override;
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override;
  bool makes_at_once() const override { return facts_.makes_at_once; }
  bool was_first() const override { return was_first_; }
  void Observe(const Draft& draft, int64_t accepted) override;

 private:
  // A sequence of a pass.
  struct Row {
    Draft* draft;
    SamplerImpl* sampler;
    size_t num_seen;     // by it, before
    TokenId last;        // what the next pass reads
    bool ended = false;  // nothing can be drawn from here on
  };

  Status ProposeSome(std::span<Draft* const> drafts);
  // As a step of the rows' last tokens, `place` positions behind what has been processed.
  void MakeStep(int64_t place);
  Status DraftOnHost(int64_t places);
  Status DraftPlace(int64_t place);
  Status DraftOnDevice(int64_t places);
  // The token of a row of logits, and how likely it is to be accepted.
  void Take(Row& row, int64_t place, std::span<const float> logits, float confidence);
  void Add(Row& row, int64_t place, TokenId token, float confidence);

  Ranks& ranks_;
  std::vector<std::unique_ptr<DraftChain>> chains_;  // of the ranks, where devices draw
  SamplerImpl greedy_;                               // for samplers that are not ours
  const DraftFacts facts_;
  const int64_t vocab_size_, most_;
  bool was_first_ = false;
  // By place: of drafts that were right up to there, the share that was accepted lately.
  struct Share {
    float accepted = 0.7f;
    int64_t seen = 4;  // as if so many had been
  };
  std::array<Share, kMaxDraftTokens + 1> shares_;
  std::vector<Row> rows_;
  std::vector<RankCaches*> caches_;
  Step step_;
  std::vector<float> logits_, confidence_;
};

}  // namespace dsv4
