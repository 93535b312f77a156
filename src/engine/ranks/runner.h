// One rank: a device with the model's weights, the buffers of a step and the recordings of steps that repeat. It runs
// steps. Its callers choose the sequences of a step and use the logits. One thread at a time.
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
  void SetRanks(const RankView& view);  // makes it one of several ranks; plans the layers again
  Recordings& recordings() { return recordings_; }
  const Regimes& regimes() const { return regimes_; }
  bool on_host() const { return device_.kind() == DeviceKind::kCpu; }
  int64_t max_rows() const { return memory_ ? memory_->max_rows() : 0; }  // rows of logits that the buffers hold
  bool UsesTiles(int64_t num_tokens) const;                               // whether such a step uses AMX tiles
  // The number of decode rows up to which a row has the same bits as in a step of `rows` rows.
  int64_t RowsAlike(int64_t rows) const;

  // Allocates memory for steps of up to max_tokens tokens and max_rows rows of logits. If it was too small before,
  // earlier logits and recordings are lost. Throws std::bad_alloc; then the next Reserve starts without memory.
  void Reserve(int64_t max_tokens, int64_t max_rows);

  // For tests (DSV4_FAIL_DEVICE_AFTER): the device fails, or is late, when fault.passes passes have begun.
  void FailAfter(const DeviceFault& fault) { fault_ = fault; }
  // Call before a pass is queued; Forward does it itself. False: the device has failed; queue nothing.
  bool BeginPass();

  // Queues the forward pass of `step`, rows of one regime that fit the memory. On a device, a step with few decode rows
  // per sequence, all with logits, is filled up with padding rows and runs from a recording. `take`, if it is set, gets
  // all of its logits (LoadedModel::Forward). `stop` may end a pass that is not recorded. Binds the device to the
  // calling thread.
  void Forward(const Step& step, Regime rows, const TakeLogits& take, PassStop* stop = nullptr);
  // RecordsNext: whether Forward would record first. Prepare does only that (Recordings::Prepare).
  bool RecordsNext(const Step& step, Regime rows) const;
  void Prepare(const Step& step, Regime rows);

  // Draft: a pass of the model's draft module (LoadedModel::Draft), within the memory of Reserve. DownloadDraft: its
  // logits and confidences for `rows` sequences.
  void Draft(const Step& step, int64_t place);
  void DownloadDraft(float* logits, float* confidence, int64_t rows);
  // The part of Draft for passes that advance on the device. Queues a pass of `view`, a result of Place. Returns its
  // logits.
  Tensor QueueDraft(const StepView& view, int64_t place, const Tensor& confidence);

  // Copies rows of the last pass's logits, f32 [num_rows, V], to the host.
  void DownloadLogits(float* dst, int64_t first_row, int64_t num_rows);

  // The two halves of Forward, for steps that advance on the device: Place uploads the step's arrays, Queue queues the
  // pass.
  StepView Place(const Step& step, Regime rows);
  const Step& FillUp(const Step& step) { return idle_rows_.Fill(step); }  // with padding rows (IdleRows::Fill)
  void Queue(const StepView& view, const TakeLogits& take);
  Tensor Logits(int64_t num_rows) const { return memory_->Logits(num_rows); }

 private:
  // Whether the step repeats: few decode rows per sequence, all with logits. Such steps run the same kernels at the
  // same addresses, for any positions and any distribution of rows.
  bool Repeats(const Step& step, Regime rows) const;
  static RepeatedStep RepeatedOf(const Step& step);

  Device& device_;
  const std::unique_ptr<LoadedModel> model_;
  const AmxUse amx_;
  const Regimes regimes_;
  const int64_t least_tokens_, least_rows_;  // minimum sizes of the buffers
  ExecContext ctx_;
  std::unique_ptr<StepMemory> memory_;
  StepBuffers step_buffers_;
  Recordings recordings_;
  IdleRows idle_rows_;
  DeviceFault fault_;
  int64_t num_passes_ = 0;
};

}  // namespace dsv4
