// Copies between host memory and a device's memory, or within it, that run while the device works.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"

namespace dsv4 {

// Copies run in the order in which they are queued. Call from one thread: the one that queues the device's work.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  // Copies queued after this call wait for the device's work that is queued so far.
  virtual void AfterWork() = 0;
  // Each side is the device's memory, memory of Device::AllocateHost, or staging memory. Until the copy has run, do not
  // change `src` and do not read `dst`.
  virtual void Copy(void* dst, const void* src, int64_t bytes) = 0;
  // Returns a mark after the copies queued so far: 1, 2, ...
  virtual int64_t Mark() = 0;
  // The device's work queued after this call waits for that mark, or for a later one.
  virtual void WorkAfter(int64_t mark) = 0;
  // Whether the copies before that mark, or before a later one, have run. Does not wait.
  virtual bool Reached(int64_t mark) = 0;
  // How long the device's work has waited for marks, as far as it is known yet.
  virtual double waited_seconds() = 0;
};

// Returns the copy queue of a device, which must outlive it. On a CPU a copy is done when its call returns. Errors
// appear in the device's status. Null: no memory for it.
std::unique_ptr<CopyQueue> OpenCopyQueue(Device& device);

}  // namespace dsv4
