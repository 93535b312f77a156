// Device: one processor with its memory, as the engine uses it. Code above src/ops/ reaches memory of kernels only
// through this class.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/exec_context.h"
#include "dsv4/status.h"

namespace dsv4 {

// Work that is recorded once and launched many times. Every launch runs the same kernels on the same addresses.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void Launch() = 0;
  virtual int64_t num_kernels() const = 0;
};

// Calls return when the work is queued, unless their comment says otherwise. Queued work runs in order. An error of
// queued work appears in the next Synchronize() or Wait(), and is permanent: close the device and open it again.
class Device {
 public:
  // "cpu", "cuda" (the first GPU), "cuda:1". kUnsupported: this build or machine lacks it; the message gives the
  // reason.
  static Result<std::unique_ptr<Device>> Open(const std::string& name);
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;    // "NVIDIA H200, 132 SMs"
  virtual int index() const { return 0; }  // of a GPU, its number in this machine
  // The name for error messages. For GPUs it has the number: "GPU 1 (NVIDIA H200, 132 SMs)".
  virtual std::string place() const { return name(); }
  // Selects this device for the calling thread. Required before a thread queues kernels (ops) on a device other than
  // the first, or on this device after it has used another one. The calls below do not need it.
  virtual void Bind() const {}
  virtual int64_t free_bytes() const = 0;     // 0: unknown
  virtual int64_t scratch_bytes() const = 0;  // that the first Context() will allocate for ops

  // Aligned to at least 256 bytes; null: no memory. Free waits for queued work.
  virtual void* Allocate(int64_t bytes) = 0;
  virtual void Free(void* p) = 0;
  // Host memory with the fastest copies to and from the device.
  virtual void* AllocateStaging(int64_t bytes) = 0;
  virtual void FreeStaging(void* p) = 0;
  // Host memory that kernels of this device read in place, at the same address; on a GPU over the PCIe link. Aligned to
  // at least 256 bytes; null: no memory. FreeHost waits for queued work.
  virtual void* AllocateHost(int64_t bytes) { return AllocateStaging(bytes); }
  virtual void FreeHost(void* p) { FreeStaging(p); }
  // Limits the device to `bytes` of memory in all, including memory that other programs hold.
  virtual void LimitMemory(int64_t bytes) { (void)bytes; }

  // `src` is on the host. It may be reused when Upload returns. If it is staging memory, only after the copy has run.
  virtual void Upload(void* dst, const void* src, int64_t bytes) = 0;
  // Returns when `dst` (host) holds the bytes. `src`: the device's memory, or memory of AllocateHost.
  virtual void Download(void* dst, const void* src, int64_t bytes) = 0;
  // The same without waiting. `dst` is staging memory; it is valid after Synchronize, or after Wait for a later mark.
  virtual void DownloadLater(void* dst, const void* src, int64_t bytes) = 0;
  // Both are memory that the device's kernels read: its own, or memory of AllocateHost.
  virtual void CopyWithin(void* dst, const void* src, int64_t bytes) = 0;
  // Copies the first `bytes` of each of `rows` rows. Rows of `src` are `stride` bytes apart; rows of `dst` are
  // contiguous. Both are in the device's memory.
  virtual void CopyColumns(void* dst, const void* src, int64_t rows, int64_t bytes, int64_t stride) = 0;
  virtual void Clear(void* dst, int64_t bytes) = 0;

  virtual Status Synchronize() = 0;

  // OK until a failure appears. Does not wait. Any thread may call it.
  virtual Status status() const = 0;
  // Simulates a failure of queued work, for tests.
  virtual void Fail(const std::string& why) = 0;

  // Marks the end of the work queued so far. Wait returns when that mark is reached.
  virtual int64_t Mark() = 0;
  virtual Status Wait(int64_t mark) = 0;
  virtual bool Reached(int64_t mark) = 0;  // whether Wait would return at once

  // Records the work that `work` queues instead of running it. Null: the device cannot record; run the work itself.
  virtual std::unique_ptr<Recording> Record(const std::function<void()>& work) = 0;

  // Returns the rate of plain reads, in bytes per second, from a buffer larger than every cache. `pool` is for the CPU.
  virtual Result<double> MeasureReadRate(ThreadPool* pool) = 0;

  // Returns a context for ops on this device. `pool` is for the CPU.
  virtual ExecContext Context(ThreadPool* pool, bool reference_ops) = 0;
};

// The GPU architectures that this build has kernels for, "sm_90a sm_100a"; empty: none.
std::string CompiledGpuArchitectures();

// Memory on a device, or on the host for a device, that frees itself.
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

  // False: no memory; the buffer is then empty.
  [[nodiscard]] bool Allocate(Device& device, int64_t bytes) {
    Reset();
    data_ = (device.*kAllocate)(bytes);
    if (data_ == nullptr) return false;
    device_ = &device;
    bytes_ = bytes;
    return true;
  }
  // The same if the buffer is empty; otherwise it stays as it is.
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
// The owner waits for pending copies to or from the buffer before it destroys the buffer.
using StagingBuffer = OwnedMemory<&Device::AllocateStaging, &Device::FreeStaging>;

}  // namespace dsv4
