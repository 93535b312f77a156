// Decode steps on all ranks: each has the model's part, draws from the same logits, and goes on with the same token.
// With one rank these are its steps and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/status.h"
#include "engine/decode/decode_steps.h"
#include "engine/ranks/ranks.h"
#include "kv/rank_caches.h"
#include "model/model.h"

namespace dsv4 {

class RankDecodeSteps {
 public:
  // `ranks` outlives it.
  RankDecodeSteps(Ranks& ranks, int64_t vocab_size);

  Ranks& ranks() const { return ranks_; }
  SamplerTables& tables(int rank = 0) const { return steps_[static_cast<size_t>(rank)]->tables(); }

  // DecodeSteps::Reserve on every rank.
  Status Reserve();

  // The calls of DecodeSteps on every rank, queued when they return. `step` holds the leader's views of the sequences
  // of `caches`.
  Status Begin(const Step& step, std::span<RankCaches* const> caches, std::span<const DecodeSteps::Draw> draws);
  Status QueueModel(int64_t k);
  bool masked() const { return leader().masked(); }
  std::span<uint32_t> MaskOf(size_t sequence) { return leader().MaskOf(sequence); }
  Status QueueDraw(int64_t k);

  // Waits until every rank has step k's tokens (Ranks::WaitForSame).
  Result<std::span<const int32_t>> Wait(int64_t k);

 private:
  DecodeSteps& leader() const { return *steps_.front(); }

  Ranks& ranks_;
  std::vector<std::unique_ptr<DecodeSteps>> steps_;
};

}  // namespace dsv4
