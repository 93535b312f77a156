// Closes a device that has failed and opens it again.
#include <utility>

#include "base/str.h"
#include "engine/engine_impl.h"
#include "engine/setup/thread_limit.h"

namespace dsv4 {

namespace {

bool SameModel(const ModelInfo& a, const ModelInfo& b) {
  return a.vocab_size == b.vocab_size && a.num_layers == b.num_layers && a.hidden_size == b.hidden_size &&
         a.max_context == b.max_context && a.weight_bytes == b.weight_bytes && a.kv_fixed_bytes == b.kv_fixed_bytes &&
         a.kv_bytes_per_token == b.kv_bytes_per_token;
}

}  // namespace

void EngineImpl::CloseDevices(Status why) {
  if (memory_ != nullptr) memory_->owner = nullptr;
  drafting_.CloseModule();
  drafted_steps_.reset();
  device_round_.reset();
  decode_steps_.reset();
  ranks_.reset();
  memory_.reset();  // remaining sessions and snapshots keep the devices open
  closed_ = std::move(why);
}

Status EngineImpl::Restart(const ProgressFn& progress) {
  if (memory_ != nullptr && memory_.use_count() > 1) {
    return InvalidArgument("sessions or snapshots still use the device's memory; destroy them first");
  }
  CloseDevices(Internal("the device is closed"));
  const Status opened = WithinThreadLimit(options_, [&] { return Reopen(progress); });
  if (!opened.ok()) CloseDevices(opened);
  return opened;
}

Status EngineImpl::Reopen(const ProgressFn& progress) {
  EngineOptions options = options_;
  options.progress = progress;
  DSV4_ASSIGN_OR_RETURN(Loaded loaded, LoadModel(options));
  if (!SameModel(loaded.info, info_)) return DataLoss("the model's files now hold another model; restart the program");
  DSV4_RETURN_IF_ERROR(Start(std::move(loaded)));
  if (fingerprint_.empty()) return {};
  DSV4_ASSIGN_OR_RETURN(const std::string now, MakeFingerprint());
  if (now == fingerprint_) return {};
  return DataLoss(StrCat("the model's files now hold another model, [", now, "] instead of [", fingerprint_,
                         "]; restart the program"));
}

}  // namespace dsv4
