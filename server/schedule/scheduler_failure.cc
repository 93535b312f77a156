// A device that fails takes everything with it that lies in its memory.
#include "server/base/memory_reserve.h"
#include "server/schedule/scheduler.h"
#include "server/schedule/sequence.h"

namespace dsv4::server {

// Nobody needs the device any more.
bool Scheduler::ending() const {
  const std::lock_guard lock(mutex_);
  return stop_ || draining_;
}

// A server that ends does not wait for it. Loading takes minutes; every piece of it is a step further.
Status Scheduler::RestartDevice() {
  if (ending()) return Cancelled("the server is shutting down");
  activity_ = Activity::kRestart;
  step_begin_ns_ = NowNs();
  Status restarted = ResourceExhausted("no memory to load the model again");
  HasMemoryFor([&] {
    restarted = engine_.Restart([this](const Progress&) {
      step_begin_ns_ = NowNs();
      return !ending();
    });
  });
  activity_ = Activity::kSteps;
  return restarted;
}

void Scheduler::EndAll(const Status& why) {
  const auto end = [&](Sequence& s) {
    End(s, FinishReason::kError, why);
    s.session.reset();
  };
  for (auto& s : waiting_) end(*s);
  for (auto& s : running_) end(*s);
  Retire();
}

// Every sequence ends with the true error, snapshots in memory go, those on disk stay. Then the device is opened anew
// and the model loaded again, while requests are refused; or whoever runs the server hears that there is none any more,
// as those do that come until it ends.
void Scheduler::OnDeviceFailure(const Status& failure) {
  if (device_failed_) return EndAll(failure);
  device_failed_ = true;
  metrics_.AddDeviceFailure(failure.message());
  if (options_.on_device) options_.on_device("device-failed", failure.message());
  EndAll(failure);
  cache_.DropMemory();
  const Status restarted = options_.restart_device ? RestartDevice() : failure;
  kv_bytes_ = engine_.kv_bytes();
  if (!restarted.ok() && options_.restart_device && ending()) return;
  if (!restarted.ok()) {
    if (options_.on_fatal) options_.on_fatal(restarted);
    return;
  }
  device_failed_ = false;
  metrics_.AddDeviceRestart();
  if (options_.on_device) options_.on_device("device-restarted", "");
}

}  // namespace dsv4::server
