#include "engine/ranks/runner.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "engine/setup/options.h"

namespace dsv4 {

namespace {

constexpr int64_t kTileTokens = 8;  // from this number of tokens AMX tiles are faster than AVX-512 (docs/cpu.md)

}  // namespace

Runner::Runner(Device& device, ThreadPool& pool, std::unique_ptr<LoadedModel> model, const EngineOptions& options,
               int64_t max_context, int64_t recording_bytes)
    : device_(device),
      model_(std::move(model)),
      amx_(options.amx),
      regimes_(options),
      // Recordings contain addresses, so on a device the buffers have their largest size from the beginning.
      least_tokens_(on_host() ? 1 : LeastStepTokens(options, max_context)),
      least_rows_(on_host() ? 1 : MostStepRows(options)),
      ctx_(device.Context(&pool, options.reference_ops)),
      step_buffers_(device),
      recordings_(device, recording_bytes),
      idle_rows_(device, IdleRows::Bytes(model_->kv_layout())) {
  ctx_.f32_inputs = options.activation_dtype == ActivationDtype::kF32;
  device_.Bind();  // planning queries the limits of kernels
  model_->Plan(ctx_);
}

void Runner::SetRanks(const RankView& view) {
  ctx_.ranks = &view;
  device_.Bind();
  model_->Plan(ctx_);
}

bool Runner::UsesTiles(int64_t num_tokens) const {
  return amx_ == AmxUse::kAlways || (amx_ == AmxUse::kPrefill && num_tokens >= kTileTokens);
}

int64_t Runner::RowsAlike(int64_t rows) const {
  if (on_host())
    return amx_ == AmxUse::kPrefill && rows < kTileTokens ? kTileTokens - 1 : std::numeric_limits<int64_t>::max();
  return std::max(rows, kMaxDecodeRows);
}

void Runner::Reserve(int64_t max_tokens, int64_t max_rows) {
  max_tokens = std::max(max_tokens, least_tokens_);
  max_rows = std::max(max_rows, least_rows_);
  if (memory_ && memory_->max_tokens() >= max_tokens && memory_->max_rows() >= max_rows) return;
  const int64_t tokens = std::max(max_tokens, memory_ ? memory_->max_tokens() : 0);
  const int64_t rows = std::max(max_rows, memory_ ? memory_->max_rows() : 0);
  recordings_.Clear();
  memory_.reset();
  step_buffers_.Reserve(tokens);
  if (!on_host()) idle_rows_.Reserve();
  memory_ = model_->MakeStepMemory(tokens, rows, device_);
}

bool Runner::BeginPass() {
  if (fault_.passes > 0 && ++num_passes_ >= fault_.passes) {
    if (fault_.late_s == 0) device_.Fail("DSV4_FAIL_DEVICE_AFTER");
    if (num_passes_ == fault_.passes) std::this_thread::sleep_for(std::chrono::duration<double>(fault_.late_s));
  }
  return device_.status().ok();
}

StepView Runner::Place(const Step& step, Regime rows) {
  device_.Bind();
  ctx_.tiles = UsesTiles(step.num_tokens());
  ctx_.regime = regimes_.OfPass(rows, step.num_tokens());
  return step_buffers_.Place(step);
}

void Runner::Queue(const StepView& view, const TakeLogits& take) {
  model_->Forward(ctx_, view, *memory_, memory_->Logits(std::min(view.logit_rows.dim(0), memory_->max_rows())), take);
}

void Runner::Forward(const Step& step, Regime rows, const TakeLogits& take, PassStop* stop) {
  if (!BeginPass()) return;
  if (!Repeats(step, rows)) {
    StepView view = Place(step, rows);
    view.stop = stop;
    return Queue(view, take);
  }
  const StepView view = Place(FillUp(step), rows);
  recordings_.Run(RepeatedOf(step), [&] { Queue(view, {}); });
  if (take) take(0, step.num_tokens());
}

bool Runner::Repeats(const Step& step, Regime rows) const {
  const int64_t t = step.num_tokens();
  return !on_host() && rows == Regime::kDecode && static_cast<int64_t>(step.logit_rows.size()) == t &&
         t <= StepBuffers::kSmallStep && step.most_each() <= 1 + kMaxDraftTokens;
}

RepeatedStep Runner::RepeatedOf(const Step& step) {
  const auto [sequences, rows] = IdleRows::SizeOf(step);
  return {StepWork::kModel, sequences, rows, step.keeps_drafts};
}

bool Runner::RecordsNext(const Step& step, Regime rows) const {
  return Repeats(step, rows) && recordings_.RecordsNext(RepeatedOf(step));
}

void Runner::Prepare(const Step& step, Regime rows) {
  const StepView view = Place(FillUp(step), rows);
  recordings_.Prepare(RepeatedOf(step), [&] { Queue(view, {}); });
}

void Runner::Draft(const Step& step, int64_t place) {
  if (!BeginPass()) return;
  const StepView view = Place(step, Regime::kDecode);
  QueueDraft(view, place, memory_->Confidence(step.num_tokens()));
}

Tensor Runner::QueueDraft(const StepView& view, int64_t place, const Tensor& confidence) {
  const Tensor logits = memory_->Logits(view.num_tokens());
  model_->Draft(ctx_, view, place, *memory_, logits, confidence);
  return logits;
}

void Runner::DownloadDraft(float* logits, float* confidence, int64_t rows) {
  DownloadLogits(logits, 0, rows);
  device_.Download(confidence, memory_->Confidence(rows).data, rows * 4);
}

void Runner::DownloadLogits(float* dst, int64_t first_row, int64_t num_rows) {
  const Tensor logits = memory_->Logits(memory_->max_rows());
  const int64_t width = logits.dim(1);
  device_.Download(dst, logits.f32() + first_row * width, num_rows * width * 4);
}

}  // namespace dsv4
