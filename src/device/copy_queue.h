// Copies from the host's memory to a device's that run beside the device's work.
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
  // `src`: Device::AllocateHost's, or staging memory; unchanged until the copy has run.
  virtual void Copy(void* dst, const void* src, int64_t bytes) = 0;
  // Behind the copies queued so far: 1, 2, ...
  virtual int64_t Mark() = 0;
  // The device's work that is queued from now on waits for that mark, or a later one.
  virtual void WorkAfter(int64_t mark) = 0;
};

// Of a GPU, which outlives it. Errors show in the device's status. Null: there is none.
std::unique_ptr<CopyQueue> OpenCopyQueue(Device& device);

}  // namespace dsv4
