#include <algorithm>
#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "device/copy_queue.h"
#include "device/cuda.h"
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
    spare_.insert(spare_.end(), waits_.begin(), waits_.end());
    for (const Interval& wait : spare_) cudaEventDestroy(wait.begin), cudaEventDestroy(wait.end);
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
    if (bytes > 0) Note(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, copies_));
  }
  int64_t Mark() override {
    const OnGpu on(index_);
    ++last_;
    Note(cudaEventRecord(EventOf(last_), copies_));
    return last_;
  }
  void WorkAfter(int64_t mark) override {
    const OnGpu on(index_);
    const Interval wait = BeginWait();
    Note(cudaStreamWaitEvent(StreamOf(ctx_), EventOf(mark), 0));
    if (wait.end == nullptr) return;
    Note(cudaEventRecord(wait.end, StreamOf(ctx_)));
    waits_.push_back(wait);
  }
  bool Reached(int64_t mark) override {
    const OnGpu on(index_);
    const cudaError_t error = cudaEventQuery(EventOf(mark));
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // not ready is an answer, not a failure
      return false;
    }
    Note(error);
    return error == cudaSuccess;
  }
  double waited_seconds() override {
    const OnGpu on(index_);
    while (!waits_.empty()) {
      float ms = 0;
      const cudaError_t error = cudaEventElapsedTime(&ms, waits_.front().begin, waits_.front().end);
      if (error != cudaSuccess) {
        cudaGetLastError();
        break;
      }
      waited_ += static_cast<double>(ms) * 1e-3;
      spare_.push_back(waits_.front());
      waits_.pop_front();
    }
    return waited_;
  }

 private:
  // The events before and after a wait, in the order of the device's work.
  struct Interval {
    cudaEvent_t begin = nullptr, end = nullptr;
  };

  // Only the last kMarks marks have an event. An older mark gets the event of the oldest kept one, which is later.
  cudaEvent_t EventOf(int64_t mark) const {
    return marks_[static_cast<size_t>(std::max(mark, last_ - kMarks + 1) % kMarks)];
  }
  // Null events: this wait is not measured.
  Interval BeginWait() {
    if (waits_.size() == kMostWaits) (void)waited_seconds();
    if (waits_.size() == kMostWaits) return {};
    Interval wait;
    if (!spare_.empty()) {
      wait = spare_.back();
      spare_.pop_back();
    } else if (cudaEventCreate(&wait.begin) != cudaSuccess || cudaEventCreate(&wait.end) != cudaSuccess) {
      cudaGetLastError();
      if (wait.begin != nullptr) cudaEventDestroy(wait.begin);
      return {};
    }
    Note(cudaEventRecord(wait.begin, StreamOf(ctx_)));
    return wait;
  }
  void Note(cudaError_t error) const {
    if (error != cudaSuccess) NoteCudaError(ctx_, error, "copy queue");
  }

  static constexpr int64_t kMarks = 8;  // marks that are kept
  // waits not evaluated yet: a pass has one for each part that is fetched
  static constexpr size_t kMostWaits = 8192;

  const int index_;
  const ExecContext ctx_;
  cudaStream_t copies_ = nullptr;
  cudaEvent_t work_ = nullptr;
  std::array<cudaEvent_t, kMarks> marks_ = {};
  int64_t last_ = 0;
  std::deque<Interval> waits_;
  std::vector<Interval> spare_;
  double waited_ = 0;
};

}  // namespace

std::unique_ptr<CopyQueue> OpenCudaCopyQueue(Device& device) {
  auto queue = std::make_unique<CudaCopyQueue>(device);
  return queue->Open() ? std::move(queue) : nullptr;
}

}  // namespace dsv4
