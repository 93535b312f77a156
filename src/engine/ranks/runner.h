// One rank: a device with the model's weights, the buffers of a step and the recordings of steps that repeat. It runs
// steps; which sequences are in them, and what becomes of the logits, others decide. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "device/device.h"
#include "dsv4/engine.h"
#include "engine/ranks/idle_rows.h"
#include "engine/ranks/recordings.h"
#include "engine/ranks/step_buffers.h"
#include "engine/setup/device_fault.h"
#include "engine/setup/regimes.h"
#include "model/model.h"

namespace dsv4 {

class Runner {
 public:
  // `device` outlives the runner.
  Runner(Device& device, ThreadPool& pool, std::unique_ptr<LoadedModel> model, const EngineOptions& options,
         int64_t max_context, int64_t recording_bytes);

  Device& device() const { return device_; }
  LoadedModel& model() const { return *model_; }
  ExecContext& context() { return ctx_; }
  void SetRanks(const RankView& view);  // one of several from now on: the layers are planned anew
  Recordings& recordings() { return recordings_; }
  const Regimes& regimes() const { return regimes_; }
  bool on_host() const { return device_.kind() == DeviceKind::kCpu; }
  int64_t max_rows() const { return memory_ ? memory_->max_rows() : 0; }  // of logits, that there is room for
  bool UsesTiles(int64_t num_tokens) const;                               // whether such a step multiplies by AMX tiles
  // Decode rows up to which a step's rows have the bits that they have in one of `rows` rows.
  int64_t RowsAlike(int64_t rows) const;

  // Room for steps of so many tokens with so many rows of logits. Logits and recordings of before are gone where there
  // was none. Throws std::bad_alloc; the next Reserve starts from nothing then.
  void Reserve(int64_t max_tokens, int64_t max_rows);

  // For tests (DSV4_FAIL_DEVICE_AFTER): the device fails, or comes late, when so many passes have begun.
  void FailAfter(const DeviceFault& fault) { fault_ = fault; }
  // A pass is about to be queued. False: the device has failed, and there is nothing to queue. Forward asks by itself.
  bool BeginPass();

  // Queues the forward pass of `step`, rows of one regime, for which there is room. On a device a step of few decode
  // rows for each sequence, all with logits, is filled up with idle rows and runs from the recording of steps with so
  // many sequences and rows. `take`, if it is one, gets all of its logits (LoadedModel::Forward). The calling thread is
  // the device's from here on.
  void Forward(const Step& step, Regime rows, const TakeLogits& take);
  // Whether Forward would record first; Prepare does that part of it (Recordings::Prepare).
  bool RecordsNext(const Step& step, Regime rows) const;
  void Prepare(const Step& step, Regime rows);

  // A pass of the model's draft module (LoadedModel::Draft); Reserve has made room. Then what it said, of `rows`
  // sequences.
  void Draft(const Step& step, int64_t place);
  void DownloadDraft(float* logits, float* confidence, int64_t rows);
  // The part of Draft for passes that advance on the device: queues one of `view`, which Place gave; its logits.
  Tensor QueueDraft(const StepView& view, int64_t place, const Tensor& confidence);

  // Rows of those logits that the pass made last, f32 [num_rows, V], to the host.
  void DownloadLogits(float* dst, int64_t first_row, int64_t num_rows);

  // The two halves of Forward, for steps that advance on the device: brings the step's arrays there; queues the pass.
  StepView Place(const Step& step, Regime rows);
  const Step& FillUp(const Step& step) { return idle_rows_.Fill(step); }  // with idle rows (IdleRows::Fill)
  void Queue(const StepView& view, const TakeLogits& take);
  Tensor Logits(int64_t num_rows) const { return memory_->Logits(num_rows); }

 private:
  // A few decode rows of each sequence, with their logits: the same kernels at the same addresses, whatever the
  // positions and whichever rows are whose.
  bool Repeats(const Step& step, Regime rows) const;
  static RepeatedStep RepeatedOf(const Step& step);

  Device& device_;
  const std::unique_ptr<LoadedModel> model_;
  const AmxUse amx_;
  const Regimes regimes_;
  const int64_t least_tokens_, least_rows_;  // of the buffers
  ExecContext ctx_;
  std::unique_ptr<StepMemory> memory_;
  StepBuffers step_buffers_;
  Recordings recordings_;
  IdleRows idle_rows_;
  DeviceFault fault_;
  int64_t num_passes_ = 0;
};

}  // namespace dsv4
