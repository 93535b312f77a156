// Rounds whose tokens a device draws: a step of any number of rows a sequence, recorded, and one draw of all rows.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/decode/rank_decode_steps.h"
#include "engine/drafts/round_step.h"
#include "engine/ranks/ranks.h"
#include "model/model.h"
#include "ops/sample/sample.h"

namespace dsv4 {

// The first rank draws, for all. Row j of a sequence draws with the random number of its sampler's j-th next token and
// counts the tokens before it as output. A sequence that asks which tokens it may draw has its first row drawn with the
// others, and another row once it is known what it may be.
class DeviceRound : public RoundStep {
 public:
  static constexpr int64_t kMaxRows = StepBuffers::kSmallStep;  // of a step

  // Of the first rank's memory, after Reserve.
  static int64_t Bytes(int64_t vocab_size);

  // Both outlive it. For items of sessions and samplers of ours.
  DeviceRound(RankDecodeSteps& steps, const ModelInfo& info)
      : ranks_(steps.ranks()), tables_(steps.tables()), info_(info) {}
  ~DeviceRound() override;

  // Takes all memory that rounds need. Run asks by itself. Errors: kResourceExhausted.
  Status Reserve();

  Status Run(std::span<const RoundSequence> sequences) override;
  bool was_first() const override { return was_first_; }
  Result<SampledToken> Draw(size_t i, size_t row) override;
  void Forget() override { placed_.clear(); }

 private:
  // What the device holds of a sequence's sampler.
  struct Placed {
    SampleRow row;
    std::vector<TokenId> also;  // drawn since
  };

  Status MakeStep();
  void PlaceSamplers();
  // The rows of sequence i, and what they count besides.
  void AddRows(size_t i);
  void PlaceMask(size_t i);
  Status DrawRows(int64_t first, int64_t count);
  Device& device() const { return ranks_.leader().device(); }
  int64_t mask_words() const { return SampleMaskWords(info_.vocab_size); }

  Ranks& ranks_;
  SamplerTables& tables_;
  const ModelInfo& info_;
  std::span<const RoundSequence> sequences_;
  std::map<size_t, Placed> placed_;  // by number of the item
  bool was_first_ = false;

  Step step_;
  std::vector<RankCaches*> caches_;  // of step_'s sequences
  std::vector<SampleRow> rows_;
  std::vector<int32_t> also_;
  DeviceBuffer device_rows_, device_tokens_, device_masks_;
  StagingBuffer staged_tokens_, staged_masks_;  // a token of every row; what a sequence's next draw allows
};

}  // namespace dsv4
