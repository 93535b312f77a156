// Rounds with drafts of one rank, queued one ahead of the tokens that are awaited: drafts of the model's own module,
// the step that verifies them, its draws, and what of them counts, all on the device and recorded as one.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "dsv4/status.h"
#include "engine/ranks/runner.h"
#include "engine/sampling/sampler_impl.h"
#include "engine/sampling/sampler_tables.h"
#include "kv/layout.h"
#include "model/model.h"
#include "ops/place_drafts/place_drafts.h"
#include "ops/sample/sample.h"

namespace dsv4 {

// How a sequence of DraftedSteps draws, and what is known of its text: tokens from position known_from on, which are
// taken for drafts in place of the module's.
struct DraftedSequence {
  const SamplerImpl* sampler = nullptr;
  std::span<const TokenId> known = {};
  int64_t known_from = 0;
};

class DraftedSteps {
 public:
  // Of a sequence in a round. A round is queued before it is known whether the one in front of it ended the sequence,
  // at its first row; both write rows behind its end, and rings hold kSpareSlots of these.
  static constexpr int64_t kMostRows = 4;
  static_assert(2 * kMostRows - 1 < kSpareSlots);
  static constexpr int64_t kMaxRows = StepBuffers::kSmallStep;  // of a round

  static int64_t Bytes();  // of the device's memory

  // Both outlive it; `tables` are the rank's.
  DraftedSteps(Runner& runner, SamplerTables& tables, int64_t vocab_size)
      : runner_(runner), tables_(tables), vocab_size_(vocab_size) {}
  ~DraftedSteps();

  // Sets up rounds of the sequences of `step`, each with as many rows, 2 to kMostRows: its next token, and room for
  // drafts. `step` outlives them. The runner has room, for a pass of the module too. Errors: kResourceExhausted, the
  // device's.
  Status Begin(const Step& step, std::span<const DraftedSequence> sequences);

  // Whether Queue would record first; Prepare does that part of it (Recordings::Prepare).
  bool RecordsNext() const { return runner_.recordings().RecordsNext(repeated_); }
  void Prepare();
  // Queues round k, k = 0, 1, ..
  void Queue(int64_t k);
  // Waits for round k: i32 [S, 2 R], AcceptDrafts' results. Good until round k + 2 is queued.
  Result<std::span<const int32_t>> Wait(int64_t k);

 private:
  Status Allocate();
  void PlaceRows(std::span<const DraftedSequence> sequences);
  void PlaceDraftStep(const Step& step);
  void PlaceKnown(std::span<const DraftedSequence> sequences);
  void Run();
  SampleRow* rows() const { return reinterpret_cast<SampleRow*>(rows_.data()); }
  SampleRow* draft_rows() const { return rows() + kMaxRows; }
  Device& device() const { return runner_.device(); }

  Runner& runner_;
  SamplerTables& tables_;
  const int64_t vocab_size_;
  int64_t num_sequences_ = 0, rows_each_ = 0;
  RepeatedStep repeated_{StepWork::kRound, 0, 0};
  StepView view_, draft_view_;  // the step that verifies; one row a sequence, which drafts begin with
  Tensor sampled_, drafted_, confidence_, results_;

  DeviceBuffer rows_;                     // SampleRow: of the step, of drafts
  DeviceBuffer draft_step_;               // draft_view_'s arrays
  DeviceBuffer out_;                      // what the tensors above lie in
  DeviceBuffer known_;                    // KnownDraft of every sequence, then their tokens
  std::array<StagingBuffer, 2> arrived_;  // results of the last two rounds
  std::array<int64_t, 2> marks_ = {};
};

}  // namespace dsv4
