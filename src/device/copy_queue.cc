#include "device/copy_queue.h"

#include <cstring>

#include "device/cuda.h"

namespace dsv4 {

namespace {

class CpuCopyQueue : public CopyQueue {
 public:
  void AfterWork() override {}
  void Copy(void* dst, const void* src, int64_t bytes) override {
    if (bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
  }
  int64_t Mark() override { return ++last_; }
  void WorkAfter(int64_t) override {}
  bool Reached(int64_t) override { return true; }
  double waited_seconds() override { return 0; }

 private:
  int64_t last_ = 0;
};

}  // namespace

std::unique_ptr<CopyQueue> OpenCopyQueue(Device& device) {
  if (device.kind() == DeviceKind::kCpu) return std::make_unique<CpuCopyQueue>();
  return OpenCudaCopyQueue(device);
}

}  // namespace dsv4
