// Device: one processor with its memory, as the engine sees it. Above src/ops/ this is the only way to memory that
// kernels read or write.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/exec_context.h"
#include "dsv4/status.h"

namespace dsv4 {

// Work recorded once and started many times: every launch runs the same kernels on the same addresses.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void Launch() = 0;
  virtual int64_t num_kernels() const = 0;
};

// Calls return once the work is queued, unless they say otherwise; queued work runs in order. An error of queued work
// shows in the next Synchronize() or Wait() and stays: nothing helps but to close the device and to open it anew.
class Device {
 public:
  // "cpu", "cuda" (the first), "cuda:1". kUnsupported when this build or machine lacks it; the message says why.
  static Result<std::unique_ptr<Device>> Open(const std::string& name);
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;    // "NVIDIA H200, 132 SMs"
  virtual int index() const { return 0; }  // among the GPUs of the machine
  // What errors call it: of GPUs with the number, "GPU 1 (NVIDIA H200, 132 SMs)".
  virtual std::string place() const { return name(); }
  // Every thread that is to queue kernels (ops) on a device other than the first, or after it has used another, calls
  // this before it does. The calls below need no such thing.
  virtual void Bind() const {}
  virtual int64_t free_bytes() const = 0;     // 0: unknown
  virtual int64_t scratch_bytes() const = 0;  // that the first Context() will take for ops

  // At least 256-byte aligned; null when there is no room. Free waits for queued work.
  virtual void* Allocate(int64_t bytes) = 0;
  virtual void Free(void* p) = 0;
  // Host memory that copies run fastest from.
  virtual void* AllocateStaging(int64_t bytes) = 0;
  virtual void FreeStaging(void* p) = 0;
  // Host memory that kernels of this device read where it lies, by the same address: over the link, on a GPU. At least
  // 256-byte aligned; null when there is no room. FreeHost waits for queued work.
  virtual void* AllocateHost(int64_t bytes) { return AllocateStaging(bytes); }
  virtual void FreeHost(void* p) { FreeStaging(p); }
  // From now on the device behaves as if it had no more than `bytes` of memory in all, what others hold included.
  virtual void LimitMemory(int64_t bytes) { (void)bytes; }

  // `src` (host) may be reused as soon as Upload returns, unless it is staging memory: then once the copy has run.
  virtual void Upload(void* dst, const void* src, int64_t bytes) = 0;
  // Returns when `dst` (host) holds the bytes. `src`: the device's memory, or AllocateHost's.
  virtual void Download(void* dst, const void* src, int64_t bytes) = 0;
  // The same without waiting; `dst` is staging memory, valid after Synchronize or an event.
  virtual void DownloadLater(void* dst, const void* src, int64_t bytes) = 0;
  // Both in memory that the device's kernels read: its own, or AllocateHost's.
  virtual void CopyWithin(void* dst, const void* src, int64_t bytes) = 0;
  // The first `bytes` of each of `rows` rows that lie `stride` apart, one behind the other; both in the device's
  // memory.
  virtual void CopyColumns(void* dst, const void* src, int64_t rows, int64_t bytes, int64_t stride) = 0;
  virtual void Clear(void* dst, int64_t bytes) = 0;

  virtual Status Synchronize() = 0;

  // OK until a failure shows; waits for nothing. Any thread.
  virtual Status status() const = 0;
  // As if queued work had failed: for tests of what follows.
  virtual void Fail(const std::string& why) = 0;

  // Marks the end of the work queued so far; Wait returns when that mark is reached.
  virtual int64_t Mark() = 0;
  virtual Status Wait(int64_t mark) = 0;
  virtual bool Reached(int64_t mark) = 0;  // whether Wait would return at once

  // What `work` queues, recorded instead of run. Null where the device has no recordings: then run the work itself.
  virtual std::unique_ptr<Recording> Record(const std::function<void()>& work) = 0;

  // Bytes a second of plain reading, from a buffer that no cache holds. `pool` is for the CPU.
  virtual Result<double> MeasureReadRate(ThreadPool* pool) = 0;

  // A context for ops on this device. `pool` is for the CPU.
  virtual ExecContext Context(ThreadPool* pool, bool reference_ops) = 0;
};

// GPUs that this build has kernels for, "sm_90a sm_100a"; empty: none.
std::string CompiledGpuArchitectures();

// Memory of a device, or of the host for it, that frees itself.
template <void* (Device::*kAllocate)(int64_t), void (Device::*kFree)(void*)>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  ~OwnedMemory() { Reset(); }
  OwnedMemory(const OwnedMemory&) = delete;
  OwnedMemory& operator=(const OwnedMemory&) = delete;
  OwnedMemory(OwnedMemory&& o) noexcept { *this = std::move(o); }
  OwnedMemory& operator=(OwnedMemory&& o) noexcept {
    if (this != &o) {
      Reset();
      device_ = o.device_, data_ = o.data_, bytes_ = o.bytes_;
      o.data_ = nullptr, o.bytes_ = 0;
    }
    return *this;
  }

  // False when there is no room; the buffer is then empty.
  [[nodiscard]] bool Allocate(Device& device, int64_t bytes) {
    Reset();
    data_ = (device.*kAllocate)(bytes);
    if (data_ == nullptr) return false;
    device_ = &device;
    bytes_ = bytes;
    return true;
  }
  // The same where it is empty; what it holds stays.
  [[nodiscard]] bool AllocateOnce(Device& device, int64_t bytes) { return data_ != nullptr || Allocate(device, bytes); }
  void Reset() {
    if (data_ != nullptr) (device_->*kFree)(data_);
    data_ = nullptr;
    bytes_ = 0;
  }
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};
using DeviceBuffer = OwnedMemory<&Device::Allocate, &Device::Free>;
using HostBuffer = OwnedMemory<&Device::AllocateHost, &Device::FreeHost>;
// Whoever has copies to or from it under way waits for them before it goes.
using StagingBuffer = OwnedMemory<&Device::AllocateStaging, &Device::FreeStaging>;

}  // namespace dsv4
