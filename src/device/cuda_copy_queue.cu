#include <algorithm>
#include <array>

#include "device/copy_queue.h"
#include "device/launch.cuh"

namespace dsv4 {

namespace {

class CudaCopyQueue : public CopyQueue {
 public:
  explicit CudaCopyQueue(Device& device) : index_(device.index()), ctx_(device.Context(nullptr, false)) {}
  bool Open() {
    const OnGpu on(index_);
    bool ok = cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking) == cudaSuccess &&
              cudaEventCreateWithFlags(&work_, cudaEventDisableTiming) == cudaSuccess;
    for (cudaEvent_t& event : marks_)
      ok = ok && cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess;
    if (!ok) cudaGetLastError();
    return ok;
  }
  ~CudaCopyQueue() override {
    const OnGpu on(index_);
    if (copies_ != nullptr) cudaStreamSynchronize(copies_);
    for (cudaEvent_t event : marks_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (work_ != nullptr) cudaEventDestroy(work_);
    if (copies_ != nullptr) cudaStreamDestroy(copies_);
  }
  void AfterWork() override {
    const OnGpu on(index_);
    Note(cudaEventRecord(work_, StreamOf(ctx_)));
    Note(cudaStreamWaitEvent(copies_, work_, 0));
  }
  void Copy(void* dst, const void* src, int64_t bytes) override {
    const OnGpu on(index_);
    Note(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, copies_));
  }
  int64_t Mark() override {
    const OnGpu on(index_);
    ++last_;
    Note(cudaEventRecord(EventOf(last_), copies_));
    return last_;
  }
  void WorkAfter(int64_t mark) override {
    const OnGpu on(index_);
    Note(cudaStreamWaitEvent(StreamOf(ctx_), EventOf(std::max(mark, last_ - kMarks + 1)), 0));
  }

 private:
  cudaEvent_t EventOf(int64_t mark) const { return marks_[static_cast<size_t>(mark % kMarks)]; }
  void Note(cudaError_t error) const {
    if (error != cudaSuccess) NoteCudaError(ctx_, error, "copy beside work");
  }

  static constexpr int64_t kMarks = 8;  // that are kept

  const int index_;
  const ExecContext ctx_;
  cudaStream_t copies_ = nullptr;
  cudaEvent_t work_ = nullptr;
  std::array<cudaEvent_t, kMarks> marks_ = {};
  int64_t last_ = 0;
};

}  // namespace

std::unique_ptr<CopyQueue> OpenCopyQueue(Device& device) {
  if (device.kind() != DeviceKind::kCuda) return nullptr;
  auto queue = std::make_unique<CudaCopyQueue>(device);
  return queue->Open() ? std::move(queue) : nullptr;
}

}  // namespace dsv4
