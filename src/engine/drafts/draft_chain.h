// Drafts of a model's own module on a device: a pass for each place of a draft, its draws, and their way into the next
// pass, recorded as one. Of one rank; all ranks draw the same.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "dsv4/speculation.h"
#include "dsv4/status.h"
#include "engine/ranks/runner.h"
#include "model/model.h"
#include "ops/sample/sample.h"

namespace dsv4 {

// Queues a pass of the module for each place of a draft, with its draw and that one's way into the next pass: of the
// sequences of `view`, one row each at place 0, which draw as rows[s] says. tokens i32 and confidence f32: [places, S],
// out.
void QueueDraftPlaces(Runner& runner, const StepView& view, SampleRow* rows, const Tensor& tokens,
                      const Tensor& confidence);

class DraftChain {
 public:
  static constexpr int64_t kMaxSequences = StepBuffers::kSmallStep;
  static int64_t Bytes();  // of the device's memory

  // `runner` outlives it.
  explicit DraftChain(Runner& runner) : runner_(runner) {}
  ~DraftChain();

  // For the sequences of `step`, which is one for place 0 of LoadedModel::Draft: makes room, uploads. Sequence s draws
  // as rows[s] says, with the next random number at each place. The runner has room; nothing is queued.
  Status Begin(const Step& step, std::span<const SampleRow> rows, int64_t places);
  // Whether Queue would record first; Prepare does that part of it (Recordings::Prepare).
  bool RecordsNext() const { return runner_.recordings().RecordsNext(repeated_); }
  void Prepare();
  void Queue();

  // Waits for what was queued; then the draft of sequence s at a place, negative where none could be drawn, and the
  // module's confidence in it.
  Status Wait();
  int32_t token(int64_t place, int64_t s) const {
    return reinterpret_cast<const int32_t*>(staged_tokens_.data())[place * repeated_.sequences + s];
  }
  float confidence(int64_t place, int64_t s) const {
    return reinterpret_cast<const float*>(staged_confidence_.data())[place * repeated_.sequences + s];
  }

 private:
  Status Allocate();
  void Run();
  Device& device() const { return runner_.device(); }

  Runner& runner_;
  RepeatedStep repeated_{StepWork::kDraft, 0, 0};
  StepView view_;
  DeviceBuffer device_rows_, device_tokens_, device_confidence_;
  StagingBuffer staged_tokens_, staged_confidence_;  // of every place
};

}  // namespace dsv4
