// Decode steps of one rank, queued one ahead of the tokens that are awaited: the model, the draw of every sequence's
// next token, and that token's way into the next step's input, all on the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "dsv4/status.h"
#include "engine/ranks/runner.h"
#include "engine/sampling/sampler_impl.h"
#include "engine/sampling/sampler_tables.h"
#include "model/model.h"
#include "ops/sample/sample.h"

namespace dsv4 {

class DecodeSteps {
 public:
  static constexpr int64_t kMaxSequences = SamplerTables::kMaxSequences;

  // How a sequence's tokens are drawn.
  struct Draw {
    const SamplerImpl* sampler = nullptr;
    bool masked = false;  // asks before every draw which tokens it may take
  };

  // Of the device's memory, after Reserve.
  static int64_t Bytes(int64_t vocab_size);

  DecodeSteps(Runner& runner, int64_t vocab_size)
      : runner_(runner), vocab_size_(vocab_size), tables_(runner.device(), vocab_size) {}
  ~DecodeSteps();

  // Takes all memory that steps need, whatever their samplers ask for. Begin asks by itself. Errors:
  // kResourceExhausted; the next call takes what is missing.
  Status Reserve();

  // Sets up steps of the sequences of `step`, one token each, of which step 0 takes step's own; `step` outlives them.
  // The runner has room. Errors: kResourceExhausted, the device's.
  Status Begin(const Step& step, std::span<const Draw> draws);

  // Queues step k, k = 0, 1, ... With masks its draw waits for QueueDraw.
  void QueueModel(int64_t k);
  // Whether that would record first; PrepareModel does that part of it (Recordings::Prepare).
  bool ModelRecordsNext() const;
  void PrepareModel();
  // With masks: draws step k's tokens under what MaskOf's rows hold, each ceil(V / 32) words, a bit a token.
  bool masked() const { return !masks_of_.empty(); }
  std::span<uint32_t> MaskOf(size_t sequence);  // empty: this sequence has none
  void QueueDraw(int64_t k);
  // What MaskOf's rows of another rank's steps hold. The last draw has been waited for.
  void TakeMasks(const DecodeSteps& other);

  // For whoever draws between steps; Begin places its own.
  SamplerTables& tables() { return tables_; }

  // Waits for step k's tokens, one a sequence (negative: kSampleNan and so on). Good until step k + 2 is queued.
  Result<std::span<const int32_t>> Wait(int64_t k);

 private:
  void PlaceRows(std::span<const Draw> draws);
  StepWork WorkOfModel() const { return masked() ? StepWork::kModel : StepWork::kModelAndDraw; }
  RepeatedStep Repeated(StepWork work) const {
    return {work, sampled_.dim(0), sampled_.dim(0), work == StepWork::kDraw || view_.keeps_drafts};
  }
  void RunModel();
  void DrawAll();
  void Fetch(int64_t k);
  int64_t mask_words() const { return SampleMaskWords(vocab_size_); }
  uint32_t* staged_mask(int64_t row) const {
    return reinterpret_cast<uint32_t*>(staged_masks_.data()) + row * mask_words();
  }
  Device& device() const { return runner_.device(); }

  Runner& runner_;
  const int64_t vocab_size_;
  StepView view_;
  Tensor logits_, sampled_;  // of the steps that are set up, with their idle rows
  size_t num_sequences_ = 0;
  std::vector<int64_t> masks_of_;  // a sequence's row of the masks; -1: none. Empty: no sequence has one
  int64_t num_masks_ = 0;

  SamplerTables tables_;
  DeviceBuffer rows_, tokens_, masks_;    // each for kMaxSequences: SampleRow, token, ids that are allowed
  std::array<StagingBuffer, 2> arrived_;  // tokens of the last two steps
  std::array<int64_t, 2> marks_ = {};
  StagingBuffer staged_masks_;
};

}  // namespace dsv4
