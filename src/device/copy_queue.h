// Copies between the host's memory and a device's, or within it, that run beside the device's work.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"

namespace dsv4 {

// Copies run in the order in which they are queued. One thread, the one that queues the device's work.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  // Copies queued from now on wait for the device's work that is queued so far.
  virtual void AfterWork() = 0;
  // Either side: the device's memory, Device::AllocateHost's, or staging memory; `src` is unchanged, and `dst` not
  // read, until the copy has run.
  virtual void Copy(void* dst, const void* src, int64_t bytes) = 0;
  // Behind the copies queued so far: 1, 2, ...
  virtual int64_t Mark() = 0;
  // The device's work that is queued from now on waits for that mark, or a later one.
  virtual void WorkAfter(int64_t mark) = 0;
  // Whether the copies in front of that mark, or a later one, have run. Waits for nothing.
  virtual bool Reached(int64_t mark) = 0;
  // That the device's work has waited for marks, as far as it is known by now.
  virtual double waited_seconds() = 0;
};

// Of a device, which outlives it. A CPU's copies are done when the calls return. Errors show in the device's status.
// Null: no room for one.
std::unique_ptr<CopyQueue> OpenCopyQueue(Device& device);

}  // namespace dsv4
