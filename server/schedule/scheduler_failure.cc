// A device that fails takes everything with it that lies in its memory.
#include "server/schedule/scheduler.h"
#include "server/schedule/sequence.h"

namespace dsv4::server {

// Every sequence ends with the true error, snapshots in memory go, those on disk stay. Then the device is opened anew
// and the model loaded again, while requests are refused; or whoever runs the server hears that there is none any more.
void Scheduler::OnDeviceFailure(const Status& failure) {
  device_failed_ = true;
  metrics_.AddDeviceFailure(failure.message());
  if (options_.on_device) options_.on_device("device-failed", failure.message());
  const auto end = [&](Sequence& s) {
    End(s, FinishReason::kError, failure);
    s.session.reset();
  };
  for (auto& s : waiting_) end(*s);
  for (auto& s : running_) end(*s);
  Deliver();
  Retire();
  cache_.DropMemory();
  step_begin_ns_ = 0;  // loading is no step that hangs
  const Status restarted = options_.restart_device ? engine_.Restart() : failure;
  kv_bytes_ = engine_.kv_bytes();
  if (!restarted.ok()) {
    if (options_.on_fatal) options_.on_fatal(restarted);
    return;
  }
  device_failed_ = false;
  metrics_.AddDeviceRestart();
  if (options_.on_device) options_.on_device("device-restarted", "");
}

}  // namespace dsv4::server
